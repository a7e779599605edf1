"""``agentguard textworld``: generate failed runs with scripted agents in TextWorld games."""

from __future__ import annotations

from typing import Annotated

import typer

from agentguard.cli.cmd_inject import (
    Force,
    InjectionSummary,
    Json,
    Out,
    Resume,
    Seed,
    print_report,
    write_records,
)
from agentguard.evals.datasets.writer import DatasetWriter
from agentguard_lab.textworld import run_generator


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(textworld)


def textworld(
    out: Out,
    failed: Annotated[int, typer.Option(min=0, help="Number of failed runs.")] = 100,
    passed: Annotated[int, typer.Option(min=0, help="Number of passed runs.")] = 50,
    seed: Seed = 0,
    difficulty: Annotated[
        str | None, typer.Option(help="Difficulty of the games; by default the generator chooses.")
    ] = None,
    resume: Resume = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Generate TextWorld runs of scripted agents, with one error each at a known step.

    Exit status: 0 if all runs are written, 2 if no run is written, 130 after an interruption (--resume
    continues).
    """
    plan = {"failed": failed, "passed": passed, "seed": seed, "difficulty": difficulty, "by": "textworld"}
    records = run_generator.generate(failed=failed, passed=passed, seed=seed, difficulty=difficulty)
    tally = InjectionSummary()
    with DatasetWriter(out, plan, resume=resume, force=force) as output:
        write_records(records, output, tally, total=failed + passed)
    print_report(tally, out, json=json)
