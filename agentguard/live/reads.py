"""Reads that failed, made once more: what a tool declared ``read`` returned, where that is broken.

A part of `agentguard.live.session.Session`. Only a tool that is declared to change nothing is called again;
one that nothing is declared of counts as destructive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentguard.live.course import Course
from agentguard.recover.base import Outcome, Plan, Repair, Tell, Tier
from agentguard.recover.effects import EffectClass
from agentguard.recover.ledger import Claim
from agentguard.recover.reads import broken
from agentguard.recover.wording import repeated_read
from agentguard.trajectory.model import Step

ON = "tool_error"
"""Whose ladder says whether reads are made once more: the detector of results that are no good."""

_CODES = ("agent_error:system.tool_execution_error", "fault_model:response")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Again:
    """A read that was made twice."""

    tool: str
    why: str
    before: str
    after: str
    mended: bool


class Reads:
    """The reads of one session's turn.

    Args:
        course: of that session.
        tell: takes what the agent is to be told at the next boundary.
    """

    def __init__(self, course: Course, tell: Callable[[str], None]) -> None:
        self._of, self._tell = course, tell
        self._again: list[_Again] = []

    def begin(self) -> None:
        """Another turn is proposed: what was not committed is forgotten."""
        self._again = []

    def broken(self, claim: Claim, text: str, *, failed: bool | None = None) -> str:
        """Why a read is to be made once more, in a word or two; empty if it is not.

        Args:
            claim: what `Session.begin_tool` gave for it.
            text: what it returned, or what the tool said when it raised.
            failed: whether it is known to have failed, or not to have.
        """
        course, tool = self._of, claim.effect.tool
        if not course.can.repair or course.ledger.declared(tool).effect is not EffectClass.READ:
            return ""
        strategy = course.rules.planner.named(ON, "roll_forward")
        if strategy is None or not getattr(strategy, "reads", False):
            return ""
        why = broken(text, failed=failed)
        return why if why and course.account.why_not(repair=True) is None else ""

    def took(self, claim: Claim, before: str, after: str, *, failed: bool | None = None) -> bool:
        """Tell what a read returned the second time; True if that takes the place of the first result."""
        course = self._of
        why = broken(before, failed=True)
        mended = not broken(after, failed=failed)
        course.account.take(repair=True)
        self._again.append(_Again(tool=claim.effect.tool, why=why, before=before, after=after, mended=mended))
        return mended

    def committed(self, step: Step) -> list[dict[str, Any]]:
        """Keep the reads of a turn that is committed now as recoveries; returns the marks of its step."""
        made, self._again = self._again, []
        marks, used = [], set[int]()
        for one in made:
            text = one.after if one.mended else one.before
            place = next((i for i in _places(step, one.tool, text) if i not in used), None)
            if place is None:
                continue  # another took its place, such as a middleware that rewrites results
            used.add(place)
            self._keep(step, place, one)
            if one.mended:
                field = f"observations[{place}]"
                marks.append({"field": field, "original": one.before, "repaired": one.after})
                self._tell(repeated_read(one.tool))
        return marks

    def _keep(self, step: Step, place: int, one: _Again) -> None:
        repair = Repair(step=step.index, field=f"observations[{place}]", text=one.after)
        plan = Plan(
            strategy="roll_forward",
            tier=Tier.REPAIR,
            actions=(repair, Tell(text=repeated_read(one.tool))) if one.mended else (repair,),
            step=step.index,
            codes=_CODES,
            reason=f"What {one.tool} returned was {one.why or 'broken'}; it was called once more.",
        )
        outcome = Outcome.CONFIRMED if one.mended else Outcome.REFUTED
        self._of._note(plan, ON, left=(), outcome=outcome, cost={"tool_calls": 1.0})


def _places(step: Step, tool: str, text: str) -> list[int]:
    """Where among the observations a tool's result stands; a failed one may be worded by the framework."""
    of_tool = [i for i, seen in enumerate(step.observations) if seen.tool in (tool, None)]
    return [i for i in of_tool if step.observations[i].content == text] or of_tool
