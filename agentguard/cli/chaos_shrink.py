"""``agentguard chaos shrink``: smallest reproducers of the unsafe and failed runs of a campaign."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentguard.cli.json_output import print_json
from agentguard.cli.terminal_text import to_one_line
from agentguard.errors import ConfigError

if TYPE_CHECKING:
    from agentguard.chaos import CampaignReproducer

_MAX_CHARS = 300


def shrink(
    campaign: Annotated[Path, typer.Argument(help="Campaign file in YAML.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Output folder of `chaos run`, for the bundles; by default, .agentguard/chaos/NAME.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")] = False,
) -> None:
    """Reduce the calls with a fault in each unsafe or failed run, and write the smallest runs as bundles.

    The command executes the runs again, and replays each bundle.

    Exit status: 1 if a run or the replay of its bundle is not reproducible.
    """
    from agentguard.chaos import (
        CAMPAIGNS_FOLDER,
        Campaign,
        ExperimentRunner,
        read_campaign_result,
        select_runs,
        shrink_runs,
    )

    folder = output or CAMPAIGNS_FOLDER / campaign.stem
    settings = Campaign.load(campaign)
    if settings.target.command is not None:
        raise ConfigError(f"{campaign}: target.command: shrink needs target.agent, whose calls it can record")
    results = select_runs(read_campaign_result(folder, settings).results)
    problems = 0
    for reproducer in shrink_runs(ExperimentRunner(settings), results, folder) if results else ():
        problems += bool(reproducer.problem)
        _print_reproducer(reproducer, json=json)
    if not results and not json:
        typer.echo("the campaign has no unsafe and no failed run")
    if problems:
        raise typer.Exit(1)


def _print_reproducer(reproducer: CampaignReproducer, *, json: bool) -> None:
    result = reproducer.result
    if json:
        data = {
            "run": result.key,
            "outcome": result.outcome.value,
            "site": result.site,
            "fault": result.fault,
            "calls": reproducer.calls,
            "file": None if reproducer.file is None else str(reproducer.file),
            "problem": reproducer.problem,
        }
        print_json(data)
        return
    calls = ", ".join(map(str, reproducer.calls)) or "none"
    note = reproducer.problem or "the replay is equal"
    place = reproducer.file or result.key
    text = f"{place}: {result.outcome.value}: {result.fault} at {result.site}, calls {calls}; {note}"
    typer.echo(to_one_line(text, _MAX_CHARS))
