"""AgentRx: failed tau-bench retail runs, with every failure of a run and which of them is the root cause.

Source: arXiv 2602.02475. A data set is a folder that holds ``tau_dataset_failed.json`` (runs in the shape
of tau-bench results) and ``tau_ground_truth.json``: ``[{trajectory_id, failures: [{failure_id, step_number,
step_reason, failure_category, category_reason, failed_agent}], root_cause: {failure_id,
reason_for_root_cause}, failure_summary}]``. ``trajectory_id`` is the run's ``task_id``; ``step_number``
counts messages from 1, the system message being the first. A label that points at a tool's message goes to
the step that contains it. A single run with its ground truth beside ``traj`` or under ``ground_truth`` is
read too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentguard.errors import FormatError, InputError
from agentguard.trajectory.formats._chat import chat_run
from agentguard.trajectory.formats._fields import Node
from agentguard.trajectory.formats._folder import find, items
from agentguard.trajectory.formats.base import Broken
from agentguard.trajectory.formats.tau_bench import FORMAT as TAU_BENCH
from agentguard.trajectory.model import Annotation, Record, RootCause, Trajectory

RUNS = "tau_dataset_failed.json"
LABELS = "tau_ground_truth.json"
_TRUTH = ("trajectory_id", "failures", "root_cause", "failure_summary")
# Categories are spelt in several ways; each has a word that no other has.
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
    """AgentRx's tau-bench retail runs."""

    name = "agentrx"
    summary = "AgentRx: failed tau-bench runs with all failures and the root cause"

    def recognises(self, value: Any) -> float:
        """A tau-bench result with failures beside it."""
        if not isinstance(value, Mapping) or not isinstance(value.get("traj"), list):
            return 0.0
        truth = value.get("ground_truth", value)
        return 0.98 if isinstance(truth, Mapping) and "failures" in truth else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the one run of a record. Raises FormatError with the field."""
        node = Node.of(value)
        truth = node.node("ground_truth") if "ground_truth" in node else node
        run = node.rest("ground_truth", *_TRUTH)
        for record in TAU_BENCH.parse(run, name=name):
            trajectory = replace(record.trajectory, format=self.name)
            annotation = record.annotation
            if "failures" in truth:
                annotation = _annotation(truth, annotation, trajectory, node.items("traj"))
            yield Record(trajectory=trajectory, annotation=annotation)

    def open(self, folder: Path) -> Iterator[Record | Broken] | None:
        """Yield the runs of a folder with `RUNS` and `LABELS`; None if it is no such folder."""
        runs, labels = find(folder, RUNS), find(folder, LABELS)
        return None if runs is None or labels is None else _joined(runs, labels)


def _joined(runs: Path, labels: Path) -> Iterator[Record | Broken]:
    truths: dict[str, Any] = {}
    for item in items(labels):
        try:
            if item.error is not None:
                raise item.error
            truths[Node.of(item.value).scalar("trajectory_id").strip()] = item.value
        except InputError as error:
            yield Broken(error=error.located(file=str(labels), record=item.position))
    for item in items(runs):
        try:
            if item.error is not None:
                raise item.error
            node = Node.of(item.value)
            truth = truths.pop(node.scalar_or("task_id").strip(), None)
            record = {**node.data, **({"ground_truth": truth} if truth else {})}
            yield from FORMAT.parse(record, name=f"{runs.stem}#{item.position}")
        except InputError as error:
            yield Broken(error=error.located(file=str(runs), record=item.position))
    for id in truths:
        hint = "take both files from one release"
        reason = f"ground truth {id!r:.40} has no run"
        yield Broken(error=FormatError(reason, file=str(labels), field="trajectory_id", hint=hint))


def category(text: str) -> str | None:
    """A category as it is written in the ground truth to its code; None if it is none of the nine."""
    words = re.findall(r"[a-z]+", text.lower())
    return next((f"agentrx:{_CATEGORIES[word]}" for word in words if word in _CATEGORIES), None)


def _annotation(truth: Node, judged: Annotation, trajectory: Trajectory, messages: list[Any]) -> Annotation:
    step_of = chat_run(messages, at="traj").step_of
    failures = {
        failure.scalar_or("failure_id", str(i)): _failure(failure, trajectory, step_of)
        for i, failure in enumerate(truth.nodes("failures"))
    }
    chosen = truth.node_or("root_cause")
    cause = None
    if "failure_id" in chosen:
        cause = failures.get(chosen.scalar("failure_id"))
        if cause is None:
            raise chosen.error("failure_id", "names no failure of this run")
        cause = replace(cause, reason=chosen.text_or("reason_for_root_cause") or cause.reason)
    return replace(
        judged,
        failed=True,
        root_cause=cause,
        failures=tuple(failures.values()),
        extra={**judged.extra, "ground_truth": {key: truth.raw(key) for key in _TRUTH if key in truth}},
    )


def _failure(failure: Node, trajectory: Trajectory, step_of: Mapping[int, int]) -> RootCause:
    number = failure.integer("step_number") if "step_number" in failure else None
    step = None
    if number is not None:
        if number < 1:
            raise failure.error("step_number", "expected a number from 1")
        beyond = number - 1 - len(step_of)
        step = step_of.get(number - 1, len(trajectory.steps) + max(0, beyond))
    code = category(failure.text_or("failure_category"))
    return RootCause(
        step=step,
        agent=failure.text_or("failed_agent").strip().lower() or None,
        codes=() if code is None else (code,),
        reason=failure.text_or("step_reason") or failure.text_or("category_reason"),
    )


FORMAT = AgentRx()
