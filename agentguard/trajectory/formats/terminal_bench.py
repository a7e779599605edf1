"""Terminal-Bench runs: Claude Code events, or an ATIF document, with the outcome of the tests.

Source: Terminal-Bench (tbench.ai) and Harbor. Two records are read: ``{task, model, instruction, events,
is_resolved, failure_mode, parser_results}`` with the events of Claude Code's stream-json, and ``{trial,
trajectory, reward}`` with an ATIF document. A folder of trials is read, too, see ``_trial_folders.py``. All
other fields judge the run or describe the trial, so they go to the annotation. The group is the task.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentguard.errors import InputError
from agentguard.trajectory._json_node import JsonNode
from agentguard.trajectory.formats._claude_code_events import ClaudeCodeRun
from agentguard.trajectory.formats._trial_folders import find_trial_folders, read_trial
from agentguard.trajectory.formats.atif import FORMAT as ATIF
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.model import Annotation, Record, Trajectory

_TIMEOUT = "agent_timeout"
_TRIAL_SEPARATOR = "__"


class TerminalBench:
    """Importer of Terminal-Bench runs."""

    name = "terminal_bench"
    summary = "Terminal-Bench runs: Claude Code events or ATIF, with the test results"

    def score_match(self, value: Any) -> float:
        """Score events beside an outcome, or an ATIF document inside a trial."""
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
        trials = find_trial_folders(folder)
        return _parse_trials(trials) if trials else None


def _parse_trials(trials: list[Path]) -> Iterator[Record | UnreadableRecord]:
    for trial in trials:
        try:
            yield from FORMAT.parse(read_trial(trial), name=trial.name)
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


FORMAT = TerminalBench()
