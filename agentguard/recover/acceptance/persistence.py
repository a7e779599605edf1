"""The record of acceptance tests, as rows of a store: input, output, each rule's verdict, which attempt.

An entry's input is what was asked, as chat messages, without what the guard told the agent meanwhile and
without the refused outputs before it: so the attempts at one thing have one input, and an accepted and a
refused one are a pair. `agentguard convert --to sft` and ``--to preference`` read the record.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from agentguard.recover.acceptance.acceptance_test import AcceptanceTest, AcceptanceVerdict
from agentguard.store.db.rows import AcceptanceRow, Row
from agentguard.trajectory.formats.sdk import build_chat_messages, build_chat_tools
from agentguard.trajectory.model import Source, Step, Trajectory

_MAX_RUNS: Final = 1_000
_GUARD_MARKER: Final = "\n\n[guard]"


class AcceptanceRows(Protocol):
    """Where the record goes; `agentguard.store.Store` is one."""

    def write(self, *rows: Row) -> Any:
        """Keep rows, without waiting."""
        ...


class AcceptanceRecord:
    """An acceptance test whose verdicts are written to a store; a guard with a store makes it.

    Attempts are counted by run, in this process.

    Args:
        acceptance: the test.
        rows: where its verdicts go; what is lost there is counted there.
        tenant: whose they are.
    """

    def __init__(self, acceptance_test: AcceptanceTest, rows: AcceptanceRows, *, tenant: str = "") -> None:
        self.acceptance_test, self._rows, self._tenant = acceptance_test, rows, tenant
        self._attempts: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def may_block(self) -> bool:
        """Whether a rule may wait for somebody, e.g. a judge."""
        return self.acceptance_test.may_block

    def __call__(self, run: Trajectory) -> bool | str:
        """True, or why the run's output is refused."""
        verdict = self.acceptance_test.evaluate_run(run)
        row = to_acceptance_row(verdict, run, attempt=self._count_attempt(run.id), tenant=self._tenant)
        self._rows.write(row)
        return True if verdict.accepted else verdict.reason

    def _count_attempt(self, run: str) -> int:
        with self._lock:
            count = self._attempts.pop(run, 0) + 1
            self._attempts[run] = count
            while len(self._attempts) > _MAX_RUNS:
                self._attempts.popitem(last=False)
            return count


def record_acceptance(
    acceptance_function: Callable[[Trajectory], bool | str] | None, rows: AcceptanceRows | None
) -> Any:
    """An `AcceptanceTest` with its record in a store; anything else as it is."""
    return (
        AcceptanceRecord(acceptance_function, rows)
        if isinstance(acceptance_function, AcceptanceTest) and rows is not None
        else acceptance_function
    )


def to_acceptance_row(
    verdict: AcceptanceVerdict, run: Trajectory, *, attempt: int, tenant: str = ""
) -> AcceptanceRow:
    """A verdict as a row."""
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
    """What an output was given for, as chat messages: all up to it but refused outputs and the guard's words.

    A run that has no message of a user gets its task as one.
    """
    steps = [_strip_guard_additions(step, run.task) for step in _select_preceding_steps(run.steps, output)]
    messages = build_chat_messages(replace(run, steps=tuple(steps), branches=()))
    if not any(message.get("role") == "user" for message in messages):
        first = next((i for i, one in enumerate(messages) if one.get("role") != "system"), len(messages))
        messages.insert(first, {"role": "user", "content": run.task})
    return messages


def parse_attempt(row: AcceptanceRow) -> tuple[list[Mapping[str, Any]], str] | None:
    """Input and output of a row; None where its data is none that `to_acceptance_row` has made."""
    given, output = row.data.get("input"), row.data.get("output")
    if not isinstance(output, str) or not output.strip() or not isinstance(given, list) or not given:
        return None
    good = all(isinstance(one, Mapping) and isinstance(one.get("role"), str) for one in given)
    return (given, output) if good else None


def _select_preceding_steps(steps: Sequence[Step], output: str) -> Sequence[Step]:
    """The steps that led to an output: without it, and without the same agent's refused ones before it."""
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
    """A user's message as the user wrote it, where a restart has added to it."""
    if step.source is Source.USER and step.content.startswith(task + _GUARD_MARKER):
        step = replace(step, content=task)
    return replace(step, extra={name: value for name, value in step.extra.items() if name != "agentguard"})
