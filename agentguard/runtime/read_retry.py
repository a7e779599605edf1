"""Retry of calls of read-only tools whose result is an error, empty or cut off.

The module is a part of `agentguard.runtime.session.Session`. The guard only retries a tool with the declared
effect ``read``; an undeclared tool counts as destructive.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from agentguard.detect._text import to_lower
from agentguard.detect.result_classification import ResultReason, classify_result
from agentguard.recover.actions import Repair, SendMessage
from agentguard.recover.agent_messages import format_repeated_read
from agentguard.recover.effect_ledger import EffectClaim
from agentguard.recover.plan import RecoveryOutcome, RecoveryPlan, RecoveryTier
from agentguard.recover.tool_effects import EffectClass
from agentguard.runtime.run_state import RunState
from agentguard.trajectory.model import Step

_PERMANENT_REASONS = frozenset({ResultReason.REJECTED, ResultReason.DENIED, ResultReason.NO_ACTION})
"""Reasons of errors that a retry does not change."""

_TRUNCATION_PATTERN = re.compile(
    r"[\[(<]\s*(?:output |response |result )?truncated\s*[\])>]\s*\Z", re.IGNORECASE
)


def find_read_fault(text: str, *, has_failed: bool | None = None) -> str:
    """Return the fault of a tool result in one or two words; empty if there is no fault.

    Args:
        text: result or error text of the tool.
        has_failed: whether the call has failed; None if unknown.
    """
    bare = text.strip()
    result = classify_result(to_lower(text), flag=has_failed)
    if result.reason in _PERMANENT_REASONS:
        return ""
    if result.is_error:
        return "an error"
    if not bare or result.reason is ResultReason.NO_OUTPUT:
        return "empty"
    if _TRUNCATION_PATTERN.search(bare[-40:]) or _is_truncated_json(bare):
        return "cut off"
    return ""


def _is_truncated_json(text: str) -> bool:
    """Return whether a text is the beginning of an incomplete JSON document."""
    close = {"{": "}", "[": "]"}.get(text[0])
    if close is None or text.endswith(close):
        return False
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return error.pos >= len(text)
    return False


TRIGGER = "tool_error"
"""Detector whose escalation policy decides whether reads are retried."""

_FAILURE_CODE = "agent_error:system.tool_execution_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class _RetriedRead:
    """Retried call with the fault of the first result, and both results."""

    tool: str
    reason: str
    before: str
    after: str
    is_repaired: bool


class ReadRetry:
    """Retried reads in the current turn of one session.

    Args:
        queue_message: function that queues a message to the agent for the next boundary.
    """

    def __init__(self, queue_message: Callable[[str], None]) -> None:
        self._queue_message = queue_message
        self._retried_reads: list[_RetriedRead] = []

    def reset(self) -> None:
        """Discard the retries of a previous turn that was not committed."""
        self._retried_reads = []

    def claim_retry(
        self, state: RunState, claim: EffectClaim, text: str, *, has_failed: bool | None = None
    ) -> str:
        """Take a retry from the budget of the guard if a read needs one and the budget of the run permits it.

        Args:
            state: state of the session's run.
            claim: the call's claim from `Session.begin_tool`.
            text: result or error text of the tool.
            has_failed: whether the call has failed; None if unknown.

        Returns:
            The reason for the retry in one or two words; empty if the guard does not retry the read.
        """
        tool = claim.effect.tool
        if not state.capabilities.repair or state.ledger.get_tool_effect(tool).effect is not EffectClass.READ:
            return ""
        strategy = state.config.planner.find_strategy(TRIGGER, "roll_forward")
        if strategy is None or not strategy.retries_reads:
            return ""
        budget = state.config.read_retry_budget
        fault = find_read_fault(text, has_failed=has_failed)
        if not fault:
            budget.deposit()
        if not fault or state.account.find_exceeded_limit(repair=True) is not None:
            return ""
        return fault if budget.withdraw() else ""

    def record_retry(
        self, state: RunState, claim: EffectClaim, before: str, after: str, *, has_failed: bool | None = None
    ) -> bool:
        """Record the result of a retry.

        Args:
            state: state of the session's run.
            claim: the call's claim.
            before, after: results of the first and of the second call.
            has_failed: whether the second call has failed; None if unknown.

        Returns:
            True if the second result replaces the first one.
        """
        fault = find_read_fault(before, has_failed=True)
        is_repaired = not find_read_fault(after, has_failed=has_failed)
        state.account.spend(repair=True)
        self._retried_reads.append(
            _RetriedRead(
                tool=claim.effect.tool, reason=fault, before=before, after=after, is_repaired=is_repaired
            )
        )
        return is_repaired

    def build_annotations(self, state: RunState, step: Step) -> list[dict[str, Any]]:
        """Record the retries of a committed turn as recoveries; return the annotations of its step."""
        retried_reads, self._retried_reads = self._retried_reads, []
        annotations, used = [], set[int]()
        for one in retried_reads:
            text = one.after if one.is_repaired else one.before
            index = next((i for i in _find_observations(step, one.tool, text) if i not in used), None)
            if index is None:
                continue  # another component replaced the result, for example a middleware
            used.add(index)
            _record_recovery(state, step, index, one)
            if one.is_repaired:
                field = f"observations[{index}]"
                annotations.append({"field": field, "original": one.before, "repaired": one.after})
                self._queue_message(format_repeated_read(one.tool))
        return annotations


def _record_recovery(state: RunState, step: Step, observation_index: int, retried: _RetriedRead) -> None:
    repair = Repair(step=step.index, field=f"observations[{observation_index}]", text=retried.after)
    plan = RecoveryPlan(
        strategy="roll_forward",
        tier=RecoveryTier.REPAIR,
        actions=(repair, SendMessage(text=format_repeated_read(retried.tool)))
        if retried.is_repaired
        else (repair,),
        step=step.index,
        codes=(_FAILURE_CODE, "fault_model:soft_error" if retried.is_repaired else "fault_model:response"),
        reason=f"The result of {retried.tool} was {retried.reason or 'an error'}; the call was repeated.",
    )
    outcome = RecoveryOutcome.CONFIRMED if retried.is_repaired else RecoveryOutcome.REFUTED
    state.record_recovery(plan, TRIGGER, discarded_steps=(), outcome=outcome, cost={"tool_calls": 1.0})


def _find_observations(step: Step, tool: str, text: str) -> list[int]:
    """Return the indices of the observations with a tool's result.

    If no observation has this text, return those of the tool: the framework may reword an error.
    """
    of_tool = [i for i, seen in enumerate(step.observations) if seen.tool in (tool, None)]
    return [i for i in of_tool if step.observations[i].content == text] or of_tool
