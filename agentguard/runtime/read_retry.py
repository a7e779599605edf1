"""Reads that failed, made once more: what a tool declared ``read`` returned, where that is broken.

A part of `agentguard.runtime.session.Session`. Only a tool that is declared to change nothing is called
again;
one that nothing is declared of counts as destructive.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from agentguard.detect._text import to_lower
from agentguard.detect.error_patterns import ToolErrorKind, match_error
from agentguard.recover.actions import Repair, SendMessage
from agentguard.recover.agent_messages import format_repeated_read
from agentguard.recover.effect_ledger import EffectClaim
from agentguard.recover.plan import RecoveryOutcome, RecoveryPlan, RecoveryTier
from agentguard.recover.tool_effects import EffectClass
from agentguard.runtime.run_state import RunState
from agentguard.trajectory.model import Step

_PERMANENT_KINDS = frozenset({ToolErrorKind.REJECTED, ToolErrorKind.NO_ACTION})
"""Answers that say no: the same question gets the same answer."""

_TRUNCATION_PATTERN = re.compile(
    r"[\[(<]\s*(?:output |response |result )?truncated\s*[\])>]\s*\Z", re.IGNORECASE
)


def find_read_fault(text: str, *, has_failed: bool | None = None) -> str:
    """What is wrong with a result, in a word or two; empty if nothing is.

    Args:
        text: what the tool returned, or said when it failed.
        failed: whether it is known to have failed, or not to have.
    """
    bare = text.strip()
    found = match_error(to_lower(text), flag=has_failed)
    if found is not None:
        return "" if found.kind in _PERMANENT_KINDS else "an error"
    if bare in ("", "[]", "{}", "null", "None", '""'):
        return "empty"
    if _TRUNCATION_PATTERN.search(bare[-40:]) or _is_truncated_json(bare):
        return "cut off"
    return ""


def _is_truncated_json(text: str) -> bool:
    """Whether a text begins as JSON and ends before its end."""
    close = {"{": "}", "[": "]"}.get(text[0])
    if close is None or text.endswith(close):
        return False
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return error.pos >= len(text)
    return False


TRIGGER = "tool_error"
"""Whose ladder says whether reads are made once more: the detector of results that are no good."""

_FAILURE_CODES = ("agent_error:system.tool_execution_error", "fault_model:response")


@dataclass(frozen=True, slots=True, kw_only=True)
class _RetriedRead:
    """A read that was made twice."""

    tool: str
    reason: str
    before: str
    after: str
    is_repaired: bool


class ReadRetry:
    """The reads of one session's turn.

    Args:
        course: of that session.
        tell: takes what the agent is to be told at the next boundary.
    """

    def __init__(self, state: RunState, queue_message: Callable[[str], None]) -> None:
        self._state, self._queue_message = state, queue_message
        self._retried_reads: list[_RetriedRead] = []

    def reset(self) -> None:
        """Another turn is proposed: what was not committed is forgotten."""
        self._retried_reads = []

    def get_retry_reason(self, claim: EffectClaim, text: str, *, has_failed: bool | None = None) -> str:
        """Why a read is to be made once more, in a word or two; empty if it is not.

        Args:
            claim: what `Session.begin_tool` gave for it.
            text: what it returned, or what the tool said when it raised.
            failed: whether it is known to have failed, or not to have.
        """
        course, tool = self._state, claim.effect.tool
        if (
            not course.capabilities.repair
            or course.ledger.get_tool_effect(tool).effect is not EffectClass.READ
        ):
            return ""
        strategy = course.config.planner.find_strategy(TRIGGER, "roll_forward")
        if strategy is None or not strategy.retries_reads:
            return ""
        why = find_read_fault(text, has_failed=has_failed)
        return why if why and course.account.find_exceeded_limit(repair=True) is None else ""

    def record_retry(
        self, claim: EffectClaim, before: str, after: str, *, has_failed: bool | None = None
    ) -> bool:
        """Tell what a read returned the second time; True if that takes the place of the first result."""
        course = self._state
        why = find_read_fault(before, has_failed=True)
        mended = not find_read_fault(after, has_failed=has_failed)
        course.account.spend(repair=True)
        self._retried_reads.append(
            _RetriedRead(tool=claim.effect.tool, reason=why, before=before, after=after, is_repaired=mended)
        )
        return mended

    def build_annotations(self, step: Step) -> list[dict[str, Any]]:
        """Keep the reads of a turn that is committed now as recoveries; returns the marks of its step."""
        made, self._retried_reads = self._retried_reads, []
        marks, used = [], set[int]()
        for one in made:
            text = one.after if one.is_repaired else one.before
            place = next((i for i in _find_observations(step, one.tool, text) if i not in used), None)
            if place is None:
                continue  # another took its place, such as a middleware that rewrites results
            used.add(place)
            self._record_recovery(step, place, one)
            if one.is_repaired:
                field = f"observations[{place}]"
                marks.append({"field": field, "original": one.before, "repaired": one.after})
                self._queue_message(format_repeated_read(one.tool))
        return marks

    def _record_recovery(self, step: Step, observation_index: int, retried: _RetriedRead) -> None:
        repair = Repair(step=step.index, field=f"observations[{observation_index}]", text=retried.after)
        plan = RecoveryPlan(
            strategy="roll_forward",
            tier=RecoveryTier.REPAIR,
            actions=(repair, SendMessage(text=format_repeated_read(retried.tool)))
            if retried.is_repaired
            else (repair,),
            step=step.index,
            codes=_FAILURE_CODES,
            reason=f"What {retried.tool} returned was {retried.reason or 'broken'}; it was called once more.",
        )
        outcome = RecoveryOutcome.CONFIRMED if retried.is_repaired else RecoveryOutcome.REFUTED
        self._state._record_recovery(
            plan, TRIGGER, discarded_steps=(), outcome=outcome, cost={"tool_calls": 1.0}
        )


def _find_observations(step: Step, tool: str, text: str) -> list[int]:
    """Where among the observations a tool's result stands; a failed one may be worded by the framework."""
    of_tool = [i for i, seen in enumerate(step.observations) if seen.tool in (tool, None)]
    return [i for i in of_tool if step.observations[i].content == text] or of_tool
