"""``agentguard chaos stitch``: search of causal cycles in a set of workloads."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentguard.cli.terminal_text import build_console

if TYPE_CHECKING:
    from agentguard.chaos.causality import StitchingResult


def stitch(
    campaign: Annotated[Path, typer.Argument(help="File with the workloads, in YAML.")],
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder of the report and of the reproducers; by default, .agentguard/chaos/NAME.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Inject single faults into workloads, and find the cycles in which their consequences close.

    A run with all faults of a cycle confirms it. The command writes stitching.json, stitching.html and one
    bundle for each undamped cycle.

    Exit status: 1 if there is an undamped cycle.
    """
    from agentguard.chaos import CAMPAIGNS_FOLDER
    from agentguard.chaos.causality import StitchingCampaign, search_cycles

    folder = output or CAMPAIGNS_FOLDER / campaign.stem
    with Console(stderr=True).status("running …") as status:
        count = itertools.count(1)
        result = search_cycles(
            StitchingCampaign.load(campaign),
            on_run=lambda _: status.update(f"running … {next(count):,} runs"),
        )
    _write_files(result, folder, campaign.stem)
    if json:
        typer.echo((folder / "stitching.json").read_text(encoding="utf-8"))
    else:
        _print_cycles(result, folder)
    if result.undamped:
        raise typer.Exit(1)


def _write_files(result: StitchingResult, output: Path, name: str) -> None:
    from agentguard.chaos.causality import (
        build_stitching_report,
        encode_stitching_report,
        render_stitching_report,
        write_reproducer_bundle,
    )

    output.mkdir(parents=True, exist_ok=True)
    report = build_stitching_report(result)
    (output / "stitching.json").write_bytes(encode_stitching_report(report))
    page = render_stitching_report(report, f"Causal cycles of {name}")
    (output / "stitching.html").write_text(page, encoding="utf-8")
    for number, one in enumerate(result.undamped, 1):
        assert one.reproducer is not None
        write_reproducer_bundle(one.reproducer, output / f"cycle-{number}.agb")


def _print_cycles(result: StitchingResult, output: Path) -> None:
    table = Table("status", "damped by", "cycle", box=None, header_style="bold")
    for one in result.cycles:
        table.add_row(*map(escape, (one.status.value, ", ".join(one.damping) or "none", str(one.cycle))))
    build_console().print(table)
    typer.echo(f"{result.runs} runs with one fault at {result.sites} sites, {len(result.edges)} edges")
    typer.echo(f"report: {output / 'stitching.html'}")
