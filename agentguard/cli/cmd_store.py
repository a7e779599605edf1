"""``agentguard store``: make, migrate, look at and prune the store."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.markup import escape
from rich.table import Table

from agentguard.cli.terminal_text import build_console
from agentguard.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from agentguard.store import Store
    from agentguard.store.read.storage_stats import StoreStats
    from agentguard.store.write.retention import DeletionResult

Url = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="A path or postgresql://...; AGENTGUARD_STORE, else .agentguard/store.db, if absent.",
    ),
]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only rows of this tenant.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_AGE_PATTERN = re.compile(r"(\d{1,9})([smhdw])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, help="Make, migrate, look at and prune the store.")
    group.command()(init)
    group.command()(migrate)
    group.command("stats")(stats_)
    group.command()(prune)
    group.command()(export_labels)
    app.add_typer(group, name="store")


def init(url: Url = None, json: Json = False) -> None:
    """Make the store's tables; leaves a store that is there as it is."""
    with _open_store(url, new=True) as store:
        version = store.get_stats().version
        _print_message(
            {"store": str(store.address), "version": version}, f"{store.address}: version {version}", json
        )


def migrate(url: Url = None, json: Json = False) -> None:
    """Bring the tables of a store to the version this agentguard needs. Make a copy of it first."""
    from agentguard.store import Store

    address, before, after = Store.migrate(url)
    text = f"{address}: was version {before or 'none'}, is {after}"
    _print_message({"store": str(address), "before": before or None, "after": after}, text, json)


def stats_(url: Url = None, tenant: Tenant = None, json: Json = False) -> None:
    """Show how many rows a store holds, their age and their size."""
    with _open_store(url) as store:
        stats = store.get_stats(tenant=tenant)
    if json:
        _print_json(asdict(stats))
    else:
        _show_stats(stats)


def prune(
    url: Url = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="Remove runs older than this, e.g. 12h, 30d or 8w."),
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", min=0, help="Remove the oldest runs until no more is in use.")
    ] = None,
    keep_failed: Annotated[
        bool, typer.Option("--keep-failed", help="Keep runs that failed, whatever their age.")
    ] = False,
    run: Annotated[str | None, typer.Option("--run-id", metavar="ID", help="Remove this run.")] = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="Remove all there is of the tenant that --tenant names.")
    ] = False,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Remove runs with all their rows: old runs, the oldest above a size, one run, or all of a tenant."""
    selections = [older_than is not None or max_bytes is not None, run is not None, everything]
    if sum(selections) != 1:
        raise ConfigError("say what to remove: --older-than or --max-bytes, or --run, or --everything")
    if everything and tenant is None:
        raise ConfigError("--everything needs --tenant")
    if keep_failed and not selections[0]:
        raise ConfigError("--keep-failed goes with --older-than and --max-bytes")
    age = None if older_than is None else _parse_age(older_than)
    with _open_store(url) as store:
        if run is not None:
            deletion = store.delete_run(run, tenant=tenant or "")
        elif everything:
            deletion = store.delete_tenant(tenant or "")
        else:
            deletion = store.prune(
                older_than_s=age, max_bytes=max_bytes, keep_failed=keep_failed, tenant=tenant
            )
    _print_deleted(deletion, json)


def export_labels(
    output: Annotated[Path, typer.Option("--output", "-o", help="The event log to write (JSON Lines).")],
    url: Url = None,
    tenant: Tenant = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the output file if it is there.")] = False,
    json: Json = False,
) -> None:
    """Write the runs that people judged, with what they said as annotations.

    `agentguard eval event_log`, `agentguard schemata distill` and `agentguard judge train` read the file.
    Exit status: 0 some were written, 1 no run was judged clearly.
    """
    from agentguard.localize.human_labels import iter_labelled_records
    from agentguard.trajectory.event_log.events import build_events
    from agentguard.trajectory.event_log.recorder import EventLog

    if output.exists() and not force:
        raise ConfigError(f"{output} is already there (--force replaces it)")
    with _open_store(url) as store:
        count = 0
        for record in iter_labelled_records(store, tenant=tenant or ""):
            if not count:
                output.unlink(missing_ok=True)
            with EventLog.open(output) as log:
                log.extend(build_events(record))
            count += 1
    _print_message(
        {"runs": count, "output": str(output) if count else None}, f"{count} judged runs written", json
    )
    raise typer.Exit(0 if count else 1)


def _open_store(url: str | None, *, new: bool = False) -> Store:
    """The store; one that is not there is made only on request."""
    from agentguard.store import Store
    from agentguard.store.db.url import resolve_address

    address = resolve_address(url)
    if not new and address.path is not None and not address.path.exists():
        raise StoreError(f"there is no store {address}: make one with `agentguard store init`")
    return Store.open(url)


def _parse_age(text: str) -> int:
    match = _AGE_PATTERN.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"--older-than: {text!r} is not an age such as 90s, 30m, 12h, 30d or 8w")
    return int(match[1]) * _UNIT_SECONDS[match[2]]


def _show_stats(found: StoreStats) -> None:
    console = build_console()
    console.print(f"[bold]{escape(found.address)}[/]  [dim]version {found.version}[/]", soft_wrap=True)
    table = Table("what", "rows", box=None, pad_edge=False, header_style="bold")
    table.columns[1].justify = "right"
    for name, count in found.rows.items():
        table.add_row(name.replace("_", " "), f"{count:,}")
    console.print(table)
    console.print(
        f"tenants: {found.tenants}, runs from {_format_day(found.oldest)} to {_format_day(found.newest)}"
    )
    console.print(f"on disk: {found.bytes_on_disk:,} bytes, in use: {found.bytes_in_use:,} bytes")


def _format_day(at: float | None) -> str:
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at))


def _print_deleted(gone: DeletionResult, json: bool) -> None:
    if json:
        _print_json(asdict(gone))
        return
    rows = {name.replace("_", " "): count for name, count in gone.rows.items() if count}
    typer.echo("removed: " + (", ".join(f"{count:,} {name}" for name, count in rows.items()) or "nothing"))
    typer.echo(f"in use: {gone.bytes_before:,} bytes before, {gone.bytes_after:,} now")


def _print_message(held: dict[str, Any], text: str, json: bool) -> None:
    if json:
        _print_json(held)
    else:
        typer.echo(text)


def _print_json(value: Any) -> None:
    sys.stdout.buffer.write(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    sys.stdout.buffer.flush()
