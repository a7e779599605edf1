"""Terminal-Bench runs: Claude Code events, or an ATIF document, with the outcome of the tests.

Source: Terminal-Bench (tbench.ai) and Harbor. The importer reads two records: ``{task, model, instruction,
events, is_resolved, failure_mode, parser_results}`` with the events of Claude Code's stream-json, and
``{trial, trajectory, reward}`` with an ATIF document. A folder of trials is also readable. All other fields
judge the run or describe the trial, so they are in the annotation. The group is the task.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentguard.errors import FormatError, InputError
from agentguard.trajectory.formats._claude_code_events import ClaudeCodeRun
from agentguard.trajectory.formats._dataset_folder import iter_values, read_document
from agentguard.trajectory.formats.atif import FORMAT as ATIF
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Annotation, Record, Trajectory
from agentguard.trajectory.safe_json import loads

_TIMEOUT = "agent_timeout"
_TRIAL_SEPARATOR = "__"
_LEVELS = ("", "*/", "*/*/", "*/*/*/")
_RESULTS = ("result.json", "results.json")
_TRAJECTORY = Path("agent", "trajectory.json")
_CAST = Path("sessions", "agent.cast")
_REWARD = Path("verifier", "reward.txt")
_TERMINAL_CODE_PATTERN = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_EVENT_PATTERN = re.compile(r'^\{"type":.*\}$', re.MULTILINE)


class TerminalBench:
    """Importer of Terminal-Bench runs."""

    name = "terminal_bench"
    summary = "Terminal-Bench runs: Claude Code events or ATIF, with the test results"

    def score_match(self, value: Any) -> float:
        """Return a positive score for events beside an outcome, or an ATIF document inside a trial."""
        if not isinstance(value, dict):
            return 0.0
        if isinstance(value.get("events"), list) and {"is_resolved", "instruction"} <= value.keys():
            return 0.95
        return 0.95 if "trial" in value and ATIF.score_match(value.get("trajectory")) > 0 else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of a record. Raises FormatError with the field."""
        node = JsonNode.from_value(value)
        yield _parse_event_run(node, name) if "events" in node else _parse_atif_run(node, name)

    def parse_folder(self, folder: Path) -> Iterator[Record | UnreadableRecord] | None:
        """Yield the runs of the trials in a folder of Harbor or Terminal-Bench; None for another folder."""
        trials = _find_trial_folders(folder)
        return _parse_trials(trials) if trials else None


def _parse_trials(trials: list[Path]) -> Iterator[Record | UnreadableRecord]:
    for trial in trials:
        try:
            yield from FORMAT.parse(_read_trial(trial), name=trial.name)
        except InputError as error:
            yield UnreadableRecord(error=error.with_location(file=str(trial)))


def _parse_event_run(node: JsonNode, name: str) -> Record:
    task, model = node.scalar_or("task"), node.scalar_or("model")
    id = node.scalar_or("trial") or "/".join(filter(None, (task, model))) or name
    events = ClaudeCodeRun(id, FORMAT.name)
    for position, event in enumerate(node.nodes("events")):
        events.add_event(event, position)
    run = events.build_record().trajectory
    run = replace(
        run,
        task=node.text_or("instruction"),
        exit_status=_TIMEOUT if node.raw("failure_mode") == _TIMEOUT else run.exit_status,
        extra={**run.extra, **({"model": model} if model else {})},
    )
    is_resolved = node.boolean_or("is_resolved")
    return Record(
        trajectory=run,
        annotation=Annotation(
            failed=None if is_resolved is None else not is_resolved,
            group=task or None,
            extra=node.extra_fields("events", "task", "model", "instruction"),
        ),
    )


def _parse_atif_run(node: JsonNode, name: str) -> Record:
    (record,) = ATIF.parse(node.node("trajectory").data, name=name)
    result = node.node_or("result")
    trial, reward = node.scalar_or("trial"), node.number_or("reward")
    if reward is None:
        reward = result.node_or("verifier_result").node_or("rewards").number_or("reward")
    exception = result.node_or("exception_info").text_or("exception_type")
    run: Trajectory = replace(
        record.trajectory,
        id=trial or record.trajectory.id,
        format=FORMAT.name,
        exit_status=exception or record.trajectory.exit_status,
    )
    return Record(
        trajectory=run,
        annotation=Annotation(
            failed=None if reward is None else reward < 1,
            group=result.text_or("task_name") or trial.rpartition(_TRIAL_SEPARATOR)[0] or trial or None,
            extra={**node.extra_fields("trajectory", "trial"), **record.annotation.extra},
        ),
    )


def _find_trial_folders(folder: Path) -> list[Path]:
    """Return the trial folders at most three levels below a folder, in order of their path."""
    paths = (path for level in _LEVELS for name in _RESULTS for path in folder.glob(level + name))
    return sorted({path.parent for path in paths if _is_trial(path.parent)})


def _read_trial(folder: Path) -> dict[str, Any]:
    """Return the record of a trial.

    Raises:
        FormatError: a file of the trial is damaged, or the agent wrote no trajectory that can be read.
    """
    path = next(folder / name for name in _RESULTS if (folder / name).is_file())
    result = read_document(path)
    if not isinstance(result, Mapping):
        raise FormatError("expected an object", file=str(path))
    trajectory, cast = folder / _TRAJECTORY, folder / _CAST
    if trajectory.is_file():
        reward = _read_reward(folder / _REWARD)
        return {
            "trial": folder.name,
            "trajectory": read_document(trajectory),
            "reward": reward,
            "result": result,
        }
    if cast.is_file() and (events := _read_cast_events(cast)):
        return {"task": result.get("task_id"), "trial": folder.name, **result, "events": events}
    reason = (
        "the trial has neither agent/trajectory.json nor stream-json of Claude Code in sessions/agent.cast"
    )
    raise FormatError(
        reason, file=str(folder), hint="other agents' logs are read as files, with their format"
    )


def _is_trial(folder: Path) -> bool:
    return any((folder / path).is_file() for path in (_TRAJECTORY, _CAST)) or (folder / "verifier").is_dir()


def _read_reward(path: Path) -> float | None:
    try:
        return float(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def _read_cast_events(path: Path) -> list[dict[str, Any]]:
    output = []
    for item in iter_values(path):
        frame = item.value
        if isinstance(frame, list) and len(frame) == 3 and frame[1] == "o" and isinstance(frame[2], str):
            output.append(frame[2])
    text = _TERMINAL_CODE_PATTERN.sub("", "".join(output)).replace("\r", "")
    events = []
    for line in _EVENT_PATTERN.findall(text):
        try:
            event = loads(line)
        except FormatError:  # A line of another program, or one that the end of the recording cuts.
            continue
        events.append(event)
    return [event for event in events if isinstance(event, dict)]


FORMAT = TerminalBench()
