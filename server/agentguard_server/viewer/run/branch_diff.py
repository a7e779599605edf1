"""Side-by-side comparison of an abandoned branch with the branch that replaced it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Literal

from agentguard.detect.step_facts import canonicalize_json
from agentguard.trajectory.model import Step, ToolCall
from agentguard_server.viewer.data.stored_recovery import StoredRecovery
from agentguard_server.viewer.escaping import to_single_line
from agentguard_server.viewer.run.branches import BranchView, BranchViews
from agentguard_server.viewer.run.conversation import describe_error
from agentguard_server.viewer.run.effect_ledger import find_result
from agentguard_server.viewer.run.guard_annotations import read_guard_messages
from agentguard_server.viewer.run.step_kinds import StepKind, classify_step

_MAX_TEXT_CHARS = 280
_MAX_VALUE_CHARS = 90
_MAX_RESULT_CHARS = 200
_MAX_CALLS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentSummary:
    """Argument of a call; ``differs`` is True if the call on the other side has another value."""

    name: str
    value: str
    differs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSummary:
    """Call with its result on one line."""

    name: str
    arguments: tuple[ArgumentSummary, ...]
    result: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """Step on a few lines; ``more`` is the number of calls left out."""

    index: int
    kind: StepKind
    agent: str
    text: str
    calls: tuple[CallSummary, ...]
    more: int


def summarize_step(step: Step, index: int, *, counterpart: Step | None = None) -> StepSummary:
    """Summarize a step; compare its arguments with those of ``counterpart``."""
    counterpart_calls = (
        {call.name: call for call in counterpart.tool_calls} if counterpart is not None else {}
    )
    calls = tuple(
        _summarize_call(step, place, counterpart_calls.get(call.name))
        for place, call in enumerate(step.tool_calls[:_MAX_CALLS])
    )
    return StepSummary(
        index=index,
        kind=classify_step(step),
        agent=to_single_line(step.agent, 60),
        text=to_single_line(step.content or step.reasoning, _MAX_TEXT_CHARS),
        calls=calls,
        more=len(step.tool_calls) - len(calls),
    )


def _summarize_call(step: Step, place: int, other: ToolCall | None) -> CallSummary:
    call, observation = step.tool_calls[place], find_result(step, place)
    arguments: Mapping[str, Any] = call.arguments or {}
    other_arguments: Mapping[str, Any] | None = (other.arguments or {}) if other is not None else None
    argument_items = (
        list(arguments.items())[:_MAX_CALLS]
        if call.arguments is not None
        else [("", call.raw_arguments or "")]
    )
    return CallSummary(
        name=to_single_line(call.name, 80),
        arguments=tuple(
            ArgumentSummary(
                name=to_single_line(name, 60),
                value=to_single_line(
                    value if isinstance(value, str) else canonicalize_json(value), _MAX_VALUE_CHARS
                ),
                differs=other_arguments is not None
                and canonicalize_json(other_arguments.get(name)) != canonicalize_json(value),
            )
            for name, value in argument_items
        ),
        result=to_single_line(observation.content, _MAX_RESULT_CHARS) if observation is not None else "",
        error=describe_error(observation) if observation is not None else "",
    )


Relation = Literal["same", "changed", "left", "new"]

_MAX_PAIRS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPair:
    """Two corresponding steps; one of them may be missing."""

    relation: Relation
    left: StepSummary | None
    right: StepSummary | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchDiff:
    """Comparison of an abandoned branch with its replacement.

    Attributes:
        branch: the abandoned branch.
        counterpart: the branch that continued instead; it may have been abandoned later.
        pairs: steps from the fork on, at most 40 pairs.
        more: number of pairs left out.
        guard_messages: messages of the guard to the agent.
    """

    branch: BranchView
    counterpart: BranchView
    pairs: tuple[StepPair, ...]
    more: int
    guard_messages: tuple[str, ...]

    @property
    def recovery(self) -> StoredRecovery | None:
        """Return the recovery that abandoned the branch."""
        return self.branch.recovery


def diff_branches(branches: BranchViews) -> tuple[BranchDiff, ...]:
    """Compare all abandoned branches, in the order of their abandonment."""
    return tuple(_diff_branch(branch, branches.by_id[branch.parent_id]) for branch in branches.abandoned)


def _diff_branch(branch: BranchView, counterpart: BranchView) -> BranchDiff:
    fork = branch.fork_step
    branch_steps, counterpart_steps = branch.steps[fork : fork + 400], counterpart.steps[fork : fork + 400]
    pairs = align_steps(branch_steps, counterpart_steps, fork)
    recovery = branch.recovery
    guard_messages = (
        (recovery.agent_message,)
        if recovery and recovery.agent_message
        else tuple(read_guard_messages(counterpart_steps[0]))
        if counterpart_steps
        else ()
    )
    return BranchDiff(
        branch=branch,
        counterpart=counterpart,
        pairs=tuple(pairs[:_MAX_PAIRS]),
        more=max(0, len(pairs) - _MAX_PAIRS),
        guard_messages=guard_messages,
    )


def align_steps(left: Sequence[Step], right: Sequence[Step], fork: int) -> list[StepPair]:
    """Align steps that use the same tools, and the steps between them by position; other steps are single.

    ``fork`` is the index in the run of the first step of both sequences.
    """
    pairs: list[StepPair] = []
    matcher = SequenceMatcher(
        None,
        [_build_step_signature(step) for step in left],
        [_build_step_signature(step) for step in right],
        autojunk=False,
    )
    for _, a, a_end, b, b_end in matcher.get_opcodes():
        for i in range(max(a_end - a, b_end - b)):
            left_index = a + i if a + i < a_end else None
            right_index = b + i if b + i < b_end else None
            pairs.append(_build_pair(left, right, left_index, right_index, fork))
    return pairs


def _build_pair(
    left: Sequence[Step], right: Sequence[Step], left_index: int | None, right_index: int | None, fork: int
) -> StepPair:
    left_step = left[left_index] if left_index is not None else None
    right_step = right[right_index] if right_index is not None else None
    relation: Relation = "new" if left_step is None else "left"
    if left_step is not None and right_step is not None:
        is_same = _build_action_signature(left_step) == _build_action_signature(right_step)
        relation = "same" if is_same else "changed"
    return StepPair(
        relation=relation,
        left=None
        if left_step is None or left_index is None
        else summarize_step(left_step, fork + left_index, counterpart=right_step),
        right=None
        if right_step is None or right_index is None
        else summarize_step(right_step, fork + right_index, counterpart=left_step),
    )


def _build_step_signature(step: Step) -> tuple[str, ...]:
    return (step.source.value, *(call.name for call in step.tool_calls))


def _build_action_signature(step: Step) -> tuple[str, ...]:
    """Return the calls of a step with their arguments; without calls, its text."""
    calls = tuple(f"{call.name} {canonicalize_json(call.arguments)}" for call in step.tool_calls)
    return calls or (step.content.strip(),)
