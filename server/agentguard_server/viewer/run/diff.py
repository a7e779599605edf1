"""Two lines side by side from where they part: what was left, what was done in its place, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from agentguard.detect.facts import canonical
from agentguard.trajectory.model import Step
from agentguard_server.viewer.recovery import Recovered
from agentguard_server.viewer.run.brief import Brief, brief
from agentguard_server.viewer.run.guarded import told_before
from agentguard_server.viewer.run.lines import Line, Lines

Relation = Literal["same", "changed", "left", "new"]

_MOST = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two steps that stand beside each other; one of them may be missing."""

    relation: Relation
    left: Brief | None
    right: Brief | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """A branch beside the line that went on.

    Attributes:
        branch: the line that was left.
        beside: the line that went on in its place; it may have been left later.
        pairs: from where they part, at most 40.
        more: pairs that are not shown.
        told: what the agent was told.
    """

    branch: Line
    beside: Line
    pairs: tuple[Pair, ...]
    more: int
    told: tuple[str, ...]

    @property
    def recovery(self) -> Recovered | None:
        """What left the branch."""
        return self.branch.recovery


def partings(lines: Lines) -> tuple[Parting, ...]:
    """All branches, in the order in which they were left."""
    return tuple(_parting(branch, lines.by_id[branch.parent]) for branch in lines.branches)


def _parting(branch: Line, beside: Line) -> Parting:
    fork = branch.fork
    left, right = branch.steps[fork : fork + 400], beside.steps[fork : fork + 400]
    pairs = _aligned(left, right, fork)
    recovery = branch.recovery
    told = (recovery.told,) if recovery and recovery.told else tuple(told_before(right[0])) if right else ()
    return Parting(
        branch=branch,
        beside=beside,
        pairs=tuple(pairs[:_MOST]),
        more=max(0, len(pairs) - _MOST),
        told=told,
    )


def _aligned(left: Sequence[Step], right: Sequence[Step], fork: int) -> list[Pair]:
    """Steps that use the same tools are held to answer each other; what is left over stands alone."""
    pairs: list[Pair] = []
    matcher = SequenceMatcher(
        None, [_kind(one) for one in left], [_kind(one) for one in right], autojunk=False
    )
    for _, a, a_end, b, b_end in matcher.get_opcodes():
        for i in range(max(a_end - a, b_end - b)):
            one = a + i if a + i < a_end else None
            other = b + i if b + i < b_end else None
            pairs.append(_pair(left, right, one, other, fork))
    return pairs


def _pair(left: Sequence[Step], right: Sequence[Step], one: int | None, other: int | None, fork: int) -> Pair:
    relation: Relation = "new" if one is None else "left"
    if one is not None and other is not None:
        relation = "same" if _does(left[one]) == _does(right[other]) else "changed"
    before = left[one] if one is not None else None
    after = right[other] if other is not None else None
    return Pair(
        relation=relation,
        left=None if before is None or one is None else brief(before, fork + one, beside=after),
        right=None if after is None or other is None else brief(after, fork + other, beside=before),
    )


def _kind(step: Step) -> tuple[str, ...]:
    return (step.source.value, *(call.name for call in step.tool_calls))


def _does(step: Step) -> tuple[str, ...]:
    """What a step does: its calls with their arguments, else what it says."""
    calls = tuple(f"{call.name} {canonical(call.arguments)}" for call in step.tool_calls)
    return calls or (step.content.strip(),)
