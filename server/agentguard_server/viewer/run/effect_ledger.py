"""Effect ledger of a run: each tool call with a side effect, and its status.

The store has one row per effect. Whether a call reused a recorded result is inferred from the run: the same
call occurs later or on another branch with the recorded result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentguard.detect.step_facts import canonicalize_json
from agentguard.runtime.tool_execution import UNKNOWN_OUTCOME_MESSAGE
from agentguard.store.db.rows import EffectRow
from agentguard.trajectory.model import Observation, Step, ToolCall
from agentguard_server.viewer.data.run_data import RunData
from agentguard_server.viewer.run.branches import BranchView, BranchViews


class EffectStatus(StrEnum):
    """Outcome of a call with a side effect."""

    EXECUTED = "executed"
    RECONCILED = "reconciled"
    UNDONE = "undone"
    REUSED = "reused"
    SKIPPED = "skipped"
    UNKNOWN = "unknown outcome"
    REFUSED = "refused"


STATUS_MEANINGS = {
    EffectStatus.EXECUTED: "It ran once, and its effect remains.",
    EffectStatus.RECONCILED: "Its outcome was unknown; the tool's reconcile function found that it happened.",
    EffectStatus.UNDONE: "It ran, and was compensated when the run was rolled back.",
    EffectStatus.REUSED: "It ran earlier: the agent got the recorded result, and nothing ran again.",
    EffectStatus.SKIPPED: "It did not run: the turn was rejected, or the outcome of an attempt is unknown.",
    EffectStatus.UNKNOWN: "It started, and its outcome is unknown.",
    EffectStatus.REFUSED: "The tool rejected the call: it has no effect.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectEntry:
    """Call with a side effect.

    Attributes:
        status: outcome of the call.
        tool, arguments: the call.
        result: result of the call.
        branch_id, step: position of the call; the branch is None if no step of the run has the call.
        call: position among the calls of the step.
        at: time of the outcome, else of the claim; epoch seconds.
    """

    status: EffectStatus
    tool: str
    arguments: Mapping[str, Any]
    result: str
    branch_id: str | None
    step: int
    call: int = 0
    at: float | None = None

    @property
    def meaning(self) -> str:
        """Return an explanation of the status."""
        return STATUS_MEANINGS[self.status]


@dataclass(frozen=True, slots=True)
class _RecordedCall:
    """Call of the run with its position."""

    branch: BranchView
    step: Step
    place: int
    call: ToolCall
    observation: Observation | None


def build_ledger(data: RunData, branches: BranchViews) -> tuple[EffectEntry, ...]:
    """Build the ledger sorted by branch and step; the current branch comes last."""
    if not data.effects:
        return ()
    by_call: dict[tuple[str, str], list[_RecordedCall]] = {}
    for recorded_call in _collect_calls(branches):
        by_call.setdefault(
            (recorded_call.call.name, canonicalize_json(recorded_call.call.arguments or {})), []
        ).append(recorded_call)
    entries: list[EffectEntry] = []
    for row in data.effects:
        same_calls = by_call.get((row.tool, canonicalize_json(_parse_arguments(row))), [])
        executed_call = next(
            (
                recorded_call
                for recorded_call in same_calls
                if recorded_call.step.index == row.data.get("step")
            ),
            None,
        )
        if executed_call is not None:
            same_calls.remove(executed_call)
        entries.append(_build_executed_entry(row, executed_call))
    tools_with_effects = {row.tool: row for row in data.effects}
    by_result = {(row.tool, canonicalize_json(_parse_arguments(row))): row for row in data.effects}
    for key, unmatched_calls in by_call.items():
        for recorded_call in unmatched_calls:
            status = _infer_status(
                recorded_call, by_result.get(key), refusable=recorded_call.call.name in tools_with_effects
            )
            if status is not None:
                entries.append(_build_entry(status, recorded_call))
    order = {branch.id: branch.number or len(branches.by_id) for branch in branches}
    return tuple(sorted(entries, key=lambda one: (order.get(one.branch_id or "", 0), one.step, one.call)))


def _collect_calls(branches: BranchViews) -> Iterator[_RecordedCall]:
    for branch in (*branches.abandoned, branches.current):
        for step in branch.own_steps:
            for place, call in enumerate(step.tool_calls):
                yield _RecordedCall(branch, step, place, call, find_result(step, place))


def find_result(step: Step, place: int) -> Observation | None:
    """Return the result of a call: by its id, else by position if each call has a result."""
    call = step.tool_calls[place]
    matching = [
        observation
        for observation in step.observations
        if observation.call_id is not None and observation.call_id == call.id
    ]
    if matching:
        return matching[0]
    if len(step.observations) != len(step.tool_calls):
        return None
    observation = step.observations[place]
    return observation if observation.call_id is None else None


def _parse_arguments(row: EffectRow) -> Mapping[str, Any]:
    arguments = row.data.get("arguments")
    return arguments if isinstance(arguments, Mapping) else {}


def _build_executed_entry(row: EffectRow, call: _RecordedCall | None) -> EffectEntry:
    status = {
        "done": EffectStatus.EXECUTED,
        "reconciled": EffectStatus.RECONCILED,
        "compensated": EffectStatus.UNDONE,
    }.get(row.state, EffectStatus.UNKNOWN)
    if row.data.get("state") == "failed":
        status = EffectStatus.REFUSED
    step = row.data.get("step")
    return EffectEntry(
        status=status,
        tool=row.tool,
        arguments=_parse_arguments(row),
        result=str(row.data.get("result") or ""),
        branch_id=call.branch.id if call else None,
        step=step if isinstance(step, int) else 0,
        call=call.place if call else 0,
        at=row.settled_at or row.created_at,
    )


def _infer_status(call: _RecordedCall, row: EffectRow | None, *, refusable: bool) -> EffectStatus | None:
    """Return the status of a call without a row; None if no effect of the call is known."""
    if call.observation is None:
        recovery = call.branch.recovery
        is_rejected = recovery is not None and recovery.tier == "reject"
        return EffectStatus.SKIPPED if is_rejected and refusable else None
    if call.observation.content == UNKNOWN_OUTCOME_MESSAGE:
        return EffectStatus.SKIPPED
    is_same_result = (
        row is not None
        and row.state in ("done", "reconciled")
        and call.observation.content == row.data.get("result")
    )
    return EffectStatus.REUSED if is_same_result else None


def _build_entry(status: EffectStatus, recorded_call: _RecordedCall) -> EffectEntry:
    return EffectEntry(
        status=status,
        tool=recorded_call.call.name,
        arguments=recorded_call.call.arguments or {},
        result=recorded_call.observation.content if recorded_call.observation is not None else "",
        branch_id=recorded_call.branch.id,
        step=recorded_call.step.index,
        call=recorded_call.place,
    )
