"""``agentguard replay``: run an agent again with the recorded calls of bundles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, cast
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import orjson
import typer

from agentguard.bundles.archive import read_bundle
from agentguard.bundles.bindings import RecordableAgent
from agentguard.bundles.bundle import Bundle
from agentguard.bundles.replay import ReplayResult, replay_bundle
from agentguard.bundles.replay_scope import ReplayMode
from agentguard.cli.terminal_text import to_one_line
from agentguard.errors import ConfigError, ReplayMismatch
from agentguard.guard import diagnose
from agentguard.plugins import import_function

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
    mode: Annotated[ReplayMode, typer.Option(help="Source of answers and results.")] = ReplayMode.SEALED,
    from_call: Annotated[
        int | None, typer.Option(min=0, help="Number of the first live model call, for --mode from-call.")
    ] = None,
    edit: Annotated[
        Path | None,
        typer.Option(help="File with the answer in place of that of --from-call: JSON, or the text."),
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="File for a report in the format of JUnit.")] = None,
) -> None:
    """Run an agent again with recorded model answers and tool results, by default without network.

    Exit status: 0 if all replays are as expected, 1 if a replay is not. A sealed replay must be equal to its
    recording. In the other modes runs may differ; --expect compares their verdicts.
    """
    function = load_agent(agent)
    options = {"mode": mode, "from_call": from_call, "edit": None if edit is None else _read_edit(edit)}
    outcomes = []
    for file in _list_files(bundles):
        outcome = _replay_file(file, read_bundle(file), function, expect, options)
        outcomes.append(outcome)
        typer.echo(f"{file}: {outcome.problem or outcome.note}")
    if junit is not None:
        write_text(junit, write_replay_junit(outcomes))
    if any(outcome.problem for outcome in outcomes):
        raise typer.Exit(1)


def load_agent(name: str) -> RecordableAgent:
    """Import the function ``MODULE:FUNCTION``. Raises ConfigError."""
    return cast(RecordableAgent, import_function(name, place="--agent "))


def _list_files(paths: list[Path]) -> list[Path]:
    files = [
        file for path in paths for file in (sorted(path.glob(f"*{_SUFFIX}")) if path.is_dir() else [path])
    ]
    if not files:
        raise ConfigError(f"replay: the folders have no {_SUFFIX} files")
    return files


def write_text(file: Path, text: str) -> None:
    """Write a text file. Raises ConfigError if the file cannot be written."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from None


def _read_edit(file: Path) -> Any:
    """Return the answer in a file: JSON data, or its text if the file is not JSON."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--edit {file}: cannot be read: {error}") from None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text.removesuffix("\n")


def _replay_file(
    file: Path, bundle: Bundle, agent: RecordableAgent, expect: bool, options: dict[str, Any]
) -> ReplayOutcome:
    try:
        result = replay_bundle(bundle, agent, **options)
    except ReplayMismatch as error:
        return ReplayOutcome(file=file, problem=str(error))
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    except Exception as error:  # the agent under replay may raise anything
        return ReplayOutcome(file=file, problem=f"the agent raised {type(error).__name__}: {error}")
    difference = result.difference
    problem = difference if options["mode"] is ReplayMode.SEALED else ""
    if not problem and expect:
        problem = _check_verdict(bundle, result)
    return ReplayOutcome(file=file, problem=problem, note=difference or "equal")


def _check_verdict(bundle: Bundle, result: ReplayResult) -> str:
    expected = bundle.expectations.get("verdict")
    actual = diagnose(result.trajectory).verdict.value
    return "" if expected in (None, actual) else f"the verdict is {actual}, expected {expected}"


_MAX_TEXT: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOutcome:
    """Outcome of the replay of one bundle.

    Attributes:
        file: file of the bundle.
        problem: deviation from the expectation; empty if the replay is as expected.
        note: comparison with the recording.
    """

    file: Path
    problem: str = ""
    note: str = ""


def write_replay_junit(outcomes: Sequence[ReplayOutcome]) -> str:
    """Return JUnit XML with one test case a bundle."""
    failures = sum(bool(outcome.problem) for outcome in outcomes)
    counts = {"tests": str(len(outcomes)), "failures": str(failures)}
    suites = Element("testsuites", counts)
    suite = SubElement(suites, "testsuite", {"name": "agentguard replay"} | counts)
    for outcome in outcomes:
        file = to_one_line(str(outcome.file), _MAX_TEXT)
        case = SubElement(suite, "testcase", {"classname": "agentguard.replay", "name": file})
        if outcome.problem:
            message = to_one_line(outcome.problem, _MAX_TEXT)
            SubElement(case, "failure", {"type": "replay", "message": message})
    indent(suites)
    return tostring(suites, encoding="unicode", xml_declaration=True) + "\n"
