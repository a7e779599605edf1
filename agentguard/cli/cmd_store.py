"""``agentguard store``: create, migrate, index, inspect and prune the store."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from agentguard.cli.json_output import print_json
from agentguard.cli.store_access import StoreUrl, open_store, parse_age
from agentguard.cli.terminal_text import build_console
from agentguard.errors import ConfigError

if TYPE_CHECKING:
    from agentguard.store.read.store_stats import StoreStats
    from agentguard.store.write.retention import DeletionResult

Tenant = Annotated[str | None, typer.Option("--tenant", help="Only rows of this tenant.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, help="Create, migrate, index, inspect and prune the store.")
    group.command()(init)
    group.command()(migrate)
    group.command("stats")(stats_)
    group.command()(index)
    group.command()(prune)
    group.command()(export_labels)
    app.add_typer(group, name="store")


def init(url: StoreUrl = None, json: Json = False) -> None:
    """Create the tables of the store; an existing store does not change."""
    with open_store(url, new=True) as store:
        version = store.get_stats().version
        _print_message(
            {"store": str(store.address), "version": version}, f"{store.address}: version {version}", json
        )


def migrate(url: StoreUrl = None, json: Json = False) -> None:
    """Migrate the tables of a store to the version of this agentguard. Make a copy of it first."""
    from agentguard.store import Store

    address, before, after = Store.migrate(url)
    text = f"{address}: was version {before or 'none'}, is {after}"
    _print_message({"store": str(address), "before": before or None, "after": after}, text, json)


def index(url: StoreUrl = None, tenant: Tenant = None, json: Json = False) -> None:
    """Add the words of runs to the index for searches in their contents.

    The viewer does the same in the background. You can interrupt this command; the next one continues.
    """
    with open_store(url) as store:
        number = store.update_search_index(tenant=tenant)
        address = str(store.address)
    _print_message(
        {"store": address, "runs": number}, f"{address}: runs added to the index: {number:,}", json
    )


def stats_(url: StoreUrl = None, tenant: Tenant = None, json: Json = False) -> None:
    """Print the number, age and size of the rows of a store."""
    with open_store(url) as store:
        stats = store.get_stats(tenant=tenant)
    if json:
        print_json(asdict(stats), is_indented=True)
    else:
        _show_stats(stats)


def prune(
    url: StoreUrl = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="Remove runs older than this, e.g. 12h, 30d or 8w."),
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", min=0, help="Remove the oldest runs above this size.")
    ] = None,
    keep_failed: Annotated[bool, typer.Option("--keep-failed", help="Do not remove failed runs.")] = False,
    run: Annotated[str | None, typer.Option("--run-id", metavar="ID", help="Remove this run.")] = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="Remove all rows of the tenant that --tenant names.")
    ] = False,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Remove runs with all their rows: old runs, the oldest above a size, one run, or all of a tenant."""
    selections = [older_than is not None or max_bytes is not None, run is not None, everything]
    if sum(selections) != 1:
        raise ConfigError("nothing to remove: give --older-than or --max-bytes, or --run-id, or --everything")
    if everything and tenant is None:
        raise ConfigError("--everything needs --tenant")
    if keep_failed and not selections[0]:
        raise ConfigError("--keep-failed needs --older-than or --max-bytes")
    age = None if older_than is None else parse_age(older_than, "--older-than")
    with open_store(url) as store:
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
    url: StoreUrl = None,
    tenant: Tenant = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output file.")] = False,
    json: Json = False,
) -> None:
    """Write the labelled runs, with the labels as annotations, and list the runs that are left out.

    `agentguard eval event_log`, `agentguard schemata distill` and `agentguard judge train` read the file.
    Exit status: 0 if a run was written, 1 if no run has a clear label.
    """
    from agentguard.cli.label_export import export_labelled_runs

    if output.exists() and not force:
        raise ConfigError(f"{output} exists (--force replaces it)")
    with open_store(url) as store:
        summary = export_labelled_runs(store, output, tenant=tenant or "")
    message = {
        "runs": summary.written,
        "failed_without_step": summary.failed_without_step,
        "omitted": [{"run_id": run.run_id, "reason": run.omission} for run in summary.omitted],
        "output": str(output) if summary.written else None,
    }
    _print_message(message, summary.format(), json)
    raise typer.Exit(0 if summary.written else 1)


def _show_stats(stats: StoreStats) -> None:
    console = build_console()
    console.print(f"[bold]{escape(stats.address)}[/]  [dim]version {stats.version}[/]", soft_wrap=True)
    table = Table("kind", "rows", box=None, pad_edge=False, header_style="bold")
    table.columns[1].justify = "right"
    for name, count in stats.rows.items():
        table.add_row(name.replace("_", " "), f"{count:,}")
    console.print(table)
    console.print(
        f"tenants: {stats.tenants}, runs from {_format_day(stats.oldest)} to {_format_day(stats.newest)}"
    )
    console.print(f"on disk: {stats.bytes_on_disk:,} bytes, in use: {stats.bytes_in_use:,} bytes")


def _format_day(at: float | None) -> str:
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at))


def _print_deleted(deletion: DeletionResult, json: bool) -> None:
    if json:
        print_json(asdict(deletion), is_indented=True)
        return
    rows = {name.replace("_", " "): count for name, count in deletion.rows.items() if count}
    typer.echo("removed: " + (", ".join(f"{count:,} {name}" for name, count in rows.items()) or "nothing"))
    typer.echo(f"in use: {deletion.bytes_before:,} bytes before, {deletion.bytes_after:,} now")


def _print_message(message: dict[str, Any], text: str, json: bool) -> None:
    if json:
        print_json(message, is_indented=True)
    else:
        typer.echo(text)
