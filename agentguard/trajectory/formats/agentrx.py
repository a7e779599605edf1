"""AgentRx: failed tau-bench retail runs with all failures of a run and its root cause.

Source: arXiv 2602.02475. A data set is a folder with ``tau_dataset_failed.json`` (runs in the shape
of tau-bench results) and ``tau_ground_truth.json``: ``[{trajectory_id, failures: [{failure_id, step_number,
step_reason, failure_category, category_reason, failed_agent}], root_cause: {failure_id,
reason_for_root_cause}, failure_summary}]``. ``trajectory_id`` is the run's ``task_id``; ``step_number``
counts messages from 1, beginning with the system message. A label of a tool message applies to the step that
contains it. A single run with its ground truth beside ``traj`` or under ``ground_truth`` is also readable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentguard.errors import FormatError, InputError
from agentguard.trajectory.formats._chat_messages import parse_chat
from agentguard.trajectory.formats._dataset_folder import find_file, iter_values
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.tau_bench import FORMAT as TAU_BENCH
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Annotation, Record, RootCause, Trajectory

RUNS_FILE = "tau_dataset_failed.json"
LABELS_FILE = "tau_ground_truth.json"
_GROUND_TRUTH_FIELDS = ("trajectory_id", "failures", "root_cause", "failure_summary")
# Categories have several spellings; each has a word that no other has.
_CATEGORIES = {
    "adherence": "instruction_adherence_failure",
    "invention": "invention_of_new_information",
    "invocation": "invalid_invocation",
    "misinterpretation": "misinterpretation_of_tool_output",
    "misalignment": "intent_plan_misalignment",
    "underspecified": "underspecified_user_intent",
    "supported": "intent_not_supported",
    "guardrail": "guardrails_triggered",
    "guardrails": "guardrails_triggered",
    "system": "system_failure",
}


class AgentRx:
    """Importer of AgentRx's tau-bench retail runs."""

    name = "agentrx"
    summary = "AgentRx: failed tau-bench runs with all failures and the root cause"

    def score_match(self, value: Any) -> float:
        """Return a positive score for a tau-bench result with failures beside it."""
        if not isinstance(value, Mapping) or not isinstance(value.get("traj"), list):
            return 0.0
        truth = value.get("ground_truth", value)
        return 0.98 if isinstance(truth, Mapping) and "failures" in truth else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of a record. Raises FormatError with the field."""
        node = JsonNode.from_value(value)
        truth = node.node("ground_truth") if "ground_truth" in node else node
        run = node.extra_fields("ground_truth", *_GROUND_TRUTH_FIELDS)
        for record in TAU_BENCH.parse(run, name=name):
            trajectory = replace(record.trajectory, format=self.name)
            annotation = record.annotation
            if "failures" in truth:
                annotation = _build_annotation(truth, annotation, trajectory, node.items("traj"))
            yield Record(trajectory=trajectory, annotation=annotation)

    def parse_folder(self, folder: Path) -> Iterator[Record | UnreadableRecord] | None:
        """Yield the runs of a folder with `RUNS_FILE` and `LABELS_FILE`; None if it is not such a folder."""
        runs, labels = find_file(folder, RUNS_FILE), find_file(folder, LABELS_FILE)
        return None if runs is None or labels is None else _join_labels(runs, labels)


def _join_labels(runs: Path, labels: Path) -> Iterator[Record | UnreadableRecord]:
    truths: dict[str, Any] = {}
    for item in iter_values(labels):
        try:
            truths[JsonNode.from_value(item.read()).scalar("trajectory_id").strip()] = item.value
        except InputError as error:
            yield UnreadableRecord(error=error.with_location(file=str(labels), record=item.position))
    for item in iter_values(runs):
        try:
            node = JsonNode.from_value(item.read())
            truth = truths.pop(node.scalar_or("task_id").strip(), None)
            record = {**node.data, **({"ground_truth": truth} if truth else {})}
            yield from FORMAT.parse(record, name=f"{runs.stem}#{item.position}")
        except InputError as error:
            yield UnreadableRecord(error=error.with_location(file=str(runs), record=item.position))
    for id in truths:
        hint = "take both files from one release"
        reason = f"ground truth {id!r:.40} has no run"
        yield UnreadableRecord(error=FormatError(reason, file=str(labels), field="trajectory_id", hint=hint))


def parse_category(text: str) -> str | None:
    """Return the code of a category in the ground truth; None if it is not one of the nine."""
    words = re.findall(r"[a-z]+", text.lower())
    return next((f"agentrx:{_CATEGORIES[word]}" for word in words if word in _CATEGORIES), None)


def _build_annotation(
    truth: JsonNode, labels: Annotation, trajectory: Trajectory, messages: list[Any]
) -> Annotation:
    step_of = parse_chat(messages, path="traj").step_by_message
    failures = {
        failure.scalar_or("failure_id", str(i)): _parse_failure(failure, trajectory, step_of)
        for i, failure in enumerate(truth.nodes("failures"))
    }
    cause_node = truth.node_or("root_cause")
    cause = None
    if "failure_id" in cause_node:
        cause = failures.get(cause_node.scalar("failure_id"))
        if cause is None:
            raise cause_node.build_error("failure_id", "names no failure of this run")
        cause = replace(cause, reason=cause_node.text_or("reason_for_root_cause") or cause.reason)
    return replace(
        labels,
        failed=True,
        root_cause=cause,
        failures=tuple(failures.values()),
        extra={
            **labels.extra,
            "ground_truth": {key: truth.raw(key) for key in _GROUND_TRUTH_FIELDS if key in truth},
        },
    )


def _parse_failure(failure: JsonNode, trajectory: Trajectory, step_of: Mapping[int, int]) -> RootCause:
    number = failure.integer("step_number") if "step_number" in failure else None
    step = None
    if number is not None:
        if number < 1:
            raise failure.build_error("step_number", "expected a number from 1")
        beyond = number - 1 - len(step_of)
        step = step_of.get(number - 1, len(trajectory.steps) + max(0, beyond))
    code = parse_category(failure.text_or("failure_category"))
    return RootCause(
        step=step,
        agent=failure.text_or("failed_agent").strip().lower() or None,
        codes=() if code is None else (code,),
        reason=failure.text_or("step_reason") or failure.text_or("category_reason"),
    )


FORMAT = AgentRx()
