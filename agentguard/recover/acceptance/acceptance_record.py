"""Record of acceptance tests as rows of a store: input, output, results of the rules, and attempt.

The input of an entry is a list of chat messages. It omits the guard's messages and the earlier refused
outputs. So all attempts at a request have the same input. An accepted and a refused attempt form a preference
pair.
`agentguard convert --to sft` and ``--to preference`` read the record.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from agentguard._bounded_map import BoundedMap
from agentguard.recover.acceptance.acceptance_test import AcceptanceTest, AcceptanceVerdict
from agentguard.store.db.rows import AcceptanceRow, Row
from agentguard.trajectory.formats.sdk import build_chat_messages, build_chat_tools
from agentguard.trajectory.model import Source, Step, Trajectory

_MAX_RUNS: Final = 1_000
_GUARD_MARKER: Final = "\n\n[guard]"


class AcceptanceRows(Protocol):
    """Storage of acceptance rows, for example `agentguard.store.Store`."""

    def write(self, *rows: Row) -> Any:
        """Write rows without waiting."""
        ...


class AcceptanceRecord:
    """Acceptance test whose verdicts are written to a store; a guard with a store builds it.

    Attempts are counted per run in this process.

    Args:
        acceptance_test: the test.
        rows: storage of the verdicts; it counts lost rows.
        tenant: tenant of the runs.
    """

    def __init__(self, acceptance_test: AcceptanceTest, rows: AcceptanceRows, *, tenant: str = "") -> None:
        self.acceptance_test, self._rows, self._tenant = acceptance_test, rows, tenant
        self._attempts = BoundedMap[str, int](_MAX_RUNS)
        self._lock = threading.Lock()

    @property
    def may_block(self) -> bool:
        """Return whether a rule may block, for example on a judge."""
        return self.acceptance_test.may_block

    def __call__(self, run: Trajectory) -> bool | str:
        """Return True, or the reasons of the refusal of the run's output."""
        verdict = self.acceptance_test.evaluate_run(run)
        row = to_acceptance_row(verdict, run, attempt=self._count_attempt(run.id), tenant=self._tenant)
        self._rows.write(row)
        return True if verdict.accepted else verdict.reason

    def _count_attempt(self, run: str) -> int:
        with self._lock:
            count = self._attempts[run] = self._attempts.get(run, 0) + 1
            return count


def record_acceptance(
    acceptance_function: Callable[[Trajectory], bool | str] | None, rows: AcceptanceRows | None
) -> Any:
    """Wrap an `AcceptanceTest` to write its record to a store; return any other function unchanged."""
    return (
        AcceptanceRecord(acceptance_function, rows)
        if isinstance(acceptance_function, AcceptanceTest) and rows is not None
        else acceptance_function
    )


def to_acceptance_row(
    verdict: AcceptanceVerdict, run: Trajectory, *, attempt: int, tenant: str = ""
) -> AcceptanceRow:
    """Convert a verdict to a row."""
    data: dict[str, Any] = {
        "input": build_input_messages(run, verdict.output),
        "output": verdict.output,
        "checks": [
            {"rule": one.rule, "passed": one.passed, "reason": one.reason, "error": one.error}
            for one in verdict.checks
        ],
    }
    if run.tools:
        data["tools"] = build_chat_tools(run.tools)
    return AcceptanceRow(
        run_id=verdict.run, attempt=attempt, accepted=verdict.accepted, tenant=tenant, data=data
    )


def build_input_messages(run: Trajectory, output: str) -> list[dict[str, Any]]:
    """Return the chat messages before an output, without refused outputs and the guard's messages.

    If the run has no user message, its task becomes one.
    """
    steps = [_strip_guard_additions(step, run.task) for step in _select_preceding_steps(run.steps, output)]
    messages = build_chat_messages(replace(run, steps=tuple(steps), branches=()))
    if not any(message.get("role") == "user" for message in messages):
        first = next((i for i, one in enumerate(messages) if one.get("role") != "system"), len(messages))
        messages.insert(first, {"role": "user", "content": run.task})
    return messages


def parse_attempt(row: AcceptanceRow) -> tuple[list[Mapping[str, Any]], str] | None:
    """Return input and output of a row; None if its data is not from `to_acceptance_row`."""
    messages, output = row.data.get("input"), row.data.get("output")
    if not isinstance(output, str) or not output.strip() or not isinstance(messages, list) or not messages:
        return None
    is_valid = all(isinstance(one, Mapping) and isinstance(one.get("role"), str) for one in messages)
    return (messages, output) if is_valid else None


def _select_preceding_steps(steps: Sequence[Step], output: str) -> Sequence[Step]:
    """Return the steps before an output, without the same agent's refused outputs directly before it."""
    own = [i for i, step in enumerate(steps) if step.source is Source.AGENT and step.content == output]
    if not own:
        return steps
    at, agent = own[-1], steps[own[-1]].agent
    while at and steps[at - 1].source is Source.AGENT and steps[at - 1].agent == agent:
        if steps[at - 1].tool_calls:
            break
        at -= 1
    return steps[:at]


def _strip_guard_additions(step: Step, task: str) -> Step:
    """Remove the guard's annotations and the note that a restart added to the user's message."""
    if step.source is Source.USER and step.content.startswith(task + _GUARD_MARKER):
        step = replace(step, content=task)
    return replace(step, extra={name: value for name, value in step.extra.items() if name != "agentguard"})
