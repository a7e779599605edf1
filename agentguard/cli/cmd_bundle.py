"""``agentguard bundle``: inspect, verify and compare replayable bundles."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import orjson
import typer

from agentguard.bundles.archive import read_bundle, verify_bundle, write_bundle
from agentguard.bundles.bundle import Bundle, RecordedCall
from agentguard.bundles.divergence import find_divergence
from agentguard.bundles.minimization import minimize_bundle
from agentguard.bundles.regression_test import build_regression_test
from agentguard.cli.cmd_replay import load_agent, write_text
from agentguard.cli.run_input import Json
from agentguard.cli.terminal_text import to_one_line
from agentguard.errors import ConfigError

BundleFile = Annotated[Path, typer.Argument(help="Bundle file.")]
AgentName = Annotated[
    str, typer.Option(help="MODULE:FUNCTION that runs the agent; the module may be in this folder.")
]
BundleFiles = Annotated[list[Path], typer.Argument(help="Bundle files.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        no_args_is_help=True, help="Inspect, verify, compare, scrub and minimize replayable bundles."
    )
    group.command()(inspect)
    group.command()(verify)
    group.command()(diff)
    group.command()(scrub)
    group.command()(minimize)
    group.command("to-test")(write_test)
    app.add_typer(group, name="bundle")


def inspect(file: BundleFile, json: Json = False) -> None:
    """Print run, calls, diagnosis and expectations of a bundle."""
    summary = _summarize(read_bundle(file))
    if json:
        typer.echo(orjson.dumps(summary).decode())
        return
    for name, value in summary.items():
        for text in value if isinstance(value, list) else [value]:
            typer.echo(f"{name:>12}  {to_one_line(str(text), 200)}")


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


def scrub(
    file: BundleFile,
    out: Annotated[Path, typer.Option(help="File of the scrubbed bundle.")],
    pattern: Annotated[
        list[str], typer.Option(help="KIND=RE2: additional pattern of secrets; the first group is replaced.")
    ],
) -> None:
    """Replace further secrets of a bundle; a replay replaces them in the requests of the agent too."""
    bundle = read_bundle(file)
    patterns = dict(bundle.redaction_patterns) | dict(_parse_pattern(one) for one in pattern)
    write_bundle(replace(bundle, redaction_patterns=patterns), out)
    typer.echo(f"{out}: written")


def minimize(
    file: BundleFile,
    agent: AgentName,
    out: Annotated[Path, typer.Option(help="File of the smaller bundle.")],
) -> None:
    """Remove model answers from a bundle while the replayed run keeps its verdict."""
    bundle = read_bundle(file)
    smallest = minimize_bundle(bundle, load_agent(agent))
    write_bundle(smallest, out)
    counts = f"{len(bundle.model_calls)} -> {len(smallest.model_calls)} model calls"
    typer.echo(f"{out}: {counts}, {len(bundle.trajectory.steps)} -> {len(smallest.trajectory.steps)} steps")


def write_test(
    file: BundleFile,
    agent: AgentName,
    out: Annotated[Path, typer.Option(help="File of the test.")],
) -> None:
    """Write a test for pytest that fails as the run failed, and passes when the agent is fixed."""
    path = os.path.relpath(file.absolute(), out.absolute().parent)
    write_text(out, build_regression_test(read_bundle(file), agent=agent, bundle_path=Path(path).as_posix()))
    typer.echo(f"{out}: written")


def _parse_pattern(text: str) -> tuple[str, str]:
    kind, separator, pattern = text.partition("=")
    if not separator or not pattern:
        raise ConfigError(f"--pattern {text}: is not KIND=RE2")
    return kind, pattern


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
        "model call": [_describe_answer(number, call) for number, call in enumerate(bundle.model_calls)],
    }


def _describe_answer(number: int, call: RecordedCall) -> str:
    return f"{number}: {call.name}: {call.error_type or orjson.dumps(call.result).decode()}"
