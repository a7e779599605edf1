"""``agentguard replay``: run an agent again with the recorded calls of bundles."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, cast

import typer

from agentguard.bundles.agent_interface import AgentFunction
from agentguard.bundles.archive import read_bundle
from agentguard.bundles.bundle import Bundle
from agentguard.bundles.replay import ReplayResult, replay_bundle
from agentguard.errors import ConfigError, ReplayMismatch
from agentguard.guard import diagnose

_SUFFIX = ".agb"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(replay)


def replay(
    bundles: Annotated[list[Path], typer.Argument(help="Bundle files, or folders with *.agb files.")],
    agent: Annotated[
        str, typer.Option(help="MODULE:FUNCTION that runs the agent; the module may be in this folder.")
    ],
    expect: Annotated[
        bool, typer.Option("--expect", help="Also diagnose each replay and compare its verdict.")
    ] = False,
) -> None:
    """Run an agent again with recorded model answers and tool results, without network.

    Exit status: 0 if all replays are equal to their recordings, 1 if a replay differs.
    """
    function = load_agent(agent)
    failures = 0
    for file in _list_files(bundles):
        problem = _replay_file(read_bundle(file), function, expect)
        failures += bool(problem)
        typer.echo(f"{file}: {problem or 'equal'}")
    if failures:
        raise typer.Exit(1)


def load_agent(name: str) -> AgentFunction:
    """Import the function ``MODULE:FUNCTION``. Raises ConfigError."""
    module, _, function = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return cast(AgentFunction, getattr(import_module(module), function))
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"--agent {name}: cannot be imported: {error}. Give MODULE:FUNCTION.") from None


def _list_files(paths: list[Path]) -> list[Path]:
    files = [
        file for path in paths for file in (sorted(path.glob(f"*{_SUFFIX}")) if path.is_dir() else [path])
    ]
    if not files:
        raise ConfigError(f"replay: the folders have no {_SUFFIX} files")
    return files


def _replay_file(bundle: Bundle, agent: AgentFunction, expect: bool) -> str:
    """Return the difference between replay and recording; empty if they are equal."""
    try:
        result = replay_bundle(bundle, agent)
    except ReplayMismatch as error:
        return str(error)
    return _describe_difference(result) or (_check_verdict(bundle, result) if expect else "")


def _describe_difference(result: ReplayResult) -> str:
    if result.divergence is not None:
        place = f" in {result.divergence.field}" if result.divergence.field else ""
        return f"step {result.divergence.step} differs{place}"
    if result.unused_calls:
        return f"the agent did not repeat {result.unused_calls} recorded calls"
    return "" if result.is_equal else "the event logs differ outside the steps"


def _check_verdict(bundle: Bundle, result: ReplayResult) -> str:
    expected = bundle.expectations.get("verdict")
    actual = diagnose(result.trajectory).verdict.value
    return "" if expected in (None, actual) else f"the verdict is {actual}, expected {expected}"
