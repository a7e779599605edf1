"""``agentguard doctor``: checks of an installation, with a remedy for each problem."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.markup import escape
from rich.table import Table

from agentguard.cli.json_output import print_json
from agentguard.cli.terminal_text import build_console

if TYPE_CHECKING:
    from agentguard.cli.doctor_checks import CheckResult

_CONDITION_MARKS: Final = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "wrong": "[bold red]wrong[/]"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def doctor(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG]", help="Configuration of the proxy, checked with its backends and its policy."
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Store to check; by default AGENTGUARD_STORE, else .agentguard/store.db."
        ),
    ] = None,
    network: Annotated[
        bool, typer.Option("--network/--no-network", help="Send requests to the configured endpoints.")
    ] = True,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout", min=0.1, max=600, metavar="S", help="Time limit of one endpoint, in seconds."
        ),
    ] = 5.0,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe", help="Also measure the accuracy of chat judges, as `judge check` does; slow."
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check the installation: Python, extras, model files, the store; with CONFIG the proxy and its backends.

    Network requests go only to addresses in the configuration. Exit status: 1 if a check fails.
    """
    from agentguard.cli.doctor_checks import CheckContext, run_checks

    check_context = CheckContext(
        config=config, store=store, network=network, timeout_s=timeout_s, probe=probe
    )
    lines = list(run_checks(check_context))
    fault_count = sum(line.condition == "wrong" for line in lines)
    if json:
        data = {"ok": not fault_count, "wrong": fault_count, "checks": [line.as_dict() for line in lines]}
        print_json(data, is_indented=True)
    else:
        _show_results(lines, fault_count)
    raise typer.Exit(1 if fault_count else 0)


def _show_results(lines: Sequence[CheckResult], wrong: int) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("", "area", "what", "found"):
        table.add_column(title, overflow="fold")
    for line in lines:
        cell = escape(line.found)
        if line.remedy:
            cell += f"\n[dim]→ {escape(line.remedy)}[/]"
        table.add_row(_CONDITION_MARKS[line.condition], escape(line.area), escape(line.what), cell)
    console = build_console()
    console.print(table)
    console.print(f"[bold red]problems: {wrong}[/]" if wrong else "[green]no problems[/]")
