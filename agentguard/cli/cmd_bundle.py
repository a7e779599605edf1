"""``agentguard bundle``: inspect, verify and compare replayable bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
import typer

from agentguard.bundles.archive import read_bundle, verify_bundle
from agentguard.bundles.bundle import Bundle
from agentguard.bundles.divergence import find_divergence
from agentguard.cli.run_input import Json
from agentguard.cli.terminal_text import to_one_line

BundleFile = Annotated[Path, typer.Argument(help="Bundle file.")]
BundleFiles = Annotated[list[Path], typer.Argument(help="Bundle files.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(no_args_is_help=True, help="Inspect, verify and compare replayable bundles.")
    group.command()(inspect)
    group.command()(verify)
    group.command()(diff)
    app.add_typer(group, name="bundle")


def inspect(file: BundleFile, json: Json = False) -> None:
    """Print run, calls, diagnosis and expectations of a bundle."""
    summary = _summarize(read_bundle(file))
    if json:
        typer.echo(orjson.dumps(summary).decode())
        return
    for name, value in summary.items():
        typer.echo(f"{name:>12}  {to_one_line(str(value), 200)}")


def verify(files: BundleFiles) -> None:
    """Check format, checksums and content of bundles."""
    for file in files:
        members = verify_bundle(file)
        typer.echo(f"{file}: {len(members)} members are valid")


def diff(first: BundleFile, second: BundleFile) -> None:
    """Print the first step in which the runs of two bundles differ.

    Exit status: 0 if all steps are equal, 1 if a step differs.
    """
    divergence = find_divergence(read_bundle(first).trajectory, read_bundle(second).trajectory)
    if divergence is None:
        typer.echo("all steps are equal")
        return
    place = f" in {divergence.field}" if divergence.field else ": one run has no such step"
    typer.echo(f"step {divergence.step} differs{place}")
    raise typer.Exit(1)


def _summarize(bundle: Bundle) -> dict[str, object]:
    run = bundle.trajectory
    return {
        "run": run.id,
        "task": run.task,
        "steps": len(run.steps),
        "model calls": len(bundle.model_calls),
        "tool calls": len(bundle.tool_calls),
        "verdict": bundle.diagnosis.get("verdict", ""),
        "expectations": dict(bundle.expectations),
    }
