"""Gate before calls whose effects may be irreversible: less probable findings stop them, too."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from agentguard.detect.base import Finding, most_severe
from agentguard.recover.outcome_verification import CallSignature, compute_call_signature
from agentguard.recover.plan import REPEATED_CALL_TRIGGER
from agentguard.recover.recovery_policy import EFFECT_TRIGGER, MALFORMED_CALL_TRIGGER
from agentguard.recover.tool_effects import EffectClass
from agentguard.runtime.duplicate_calls import (
    DUPLICATE_CALL_TRIGGER,
    build_duplicate_finding,
    build_repetition_finding,
    find_duplicate_call,
    find_repeated_call,
    requests_equal_calls,
)
from agentguard.runtime.run_state import RunState
from agentguard.trajectory.model import Source, Step, ToolCall

SCHEMA_DETECTOR = "schema_violation"
"""Detector of arguments that violate the JSON Schema of a tool."""

_MALFORMED_DETECTORS = frozenset({SCHEMA_DETECTOR, "unparsable_action"})
"""Detectors of calls that no tool can execute; a model usually corrects them."""

_CERTAIN_DETECTORS = _MALFORMED_DETECTORS | {DUPLICATE_CALL_TRIGGER}
"""Detectors whose findings are certain: arguments violate a JSON Schema, or calls are equal."""


_APPROVAL_PATTERN = re.compile(
    r"\W*(?:(?:y|yes|yep|ok|okay|sure|approved?|allow(?:ed)?|confirm(?:ed)?|go ahead|proceed|do it|please)\b"
    r"\W*)+",
    re.IGNORECASE,
)
"""The whole answer must match: "Yes, but only 10." is a new instruction."""


class TurnApprovals:
    """Turns of one run that a person has approved or denied.

    An approval is valid until its turn is committed, so a later equal turn needs another one. A denial is
    valid until the end of the run.
    """

    def __init__(self) -> None:
        self._question: CallSignature | None = None
        self._approved: set[CallSignature] = set()
        self._denied: set[CallSignature] = set()

    def record_question(self, turn: Step) -> None:
        """Record a question to a person about the calls of a turn."""
        self._question = compute_call_signature(turn) if turn.tool_calls else None

    def record_answer(self, answer: str) -> bool | None:
        """Return whether a person's answer approves the calls; None if no calls wait for an answer."""
        signature, self._question = self._question, None
        if signature is None:
            return None
        is_approved = _APPROVAL_PATTERN.fullmatch(answer) is not None
        (self._approved if is_approved else self._denied).add(signature)
        return is_approved

    def is_approved(self, turn: Step) -> bool:
        """Return whether a person has approved the calls of a turn, which then run despite findings."""
        return bool(self._approved) and compute_call_signature(turn) in self._approved

    def is_denied(self, turn: Step) -> bool:
        """Return whether a person has refused the calls of a turn."""
        return bool(self._denied) and compute_call_signature(turn) in self._denied

    def record_commit(self, turn: Step) -> None:
        """Record that the calls of a turn have run."""
        if self._approved:
            self._approved.discard(compute_call_signature(turn))


class GateDecision(NamedTuple):
    """Refusal of the calls of a turn: the finding, and the name of the escalation policy."""

    trigger: Finding
    escalation: str


class EffectGate:
    """Gate of one run.

    - A finding with a probability of at least `SessionConfig.effect_threshold` stops a call of an undeclared
      or destructive tool.
    - Two equal calls of such a tool in one turn are such a finding. If the tool is declared destructive, or
      has the name of an irreversible action, a person decides on them. Without a person, they run only if
      the agent proposes them again and the user has requested their number.
    - If the agent proposes a stopped call of an undeclared tool again, the call runs. The hints of the budget
      limit the number of stopped calls of undeclared tools, since each costs a model call.
    - The call of a tool that is declared destructive does not run: a person decides, or the run stops.
    - A call that repeats a successful call is stopped once. Its next repetition runs, unless the escalation
      policy ``"repeated_call"`` has another level that the integration can execute.
    """

    def __init__(self) -> None:
        self._refused_turns: set[CallSignature] = set()
        self._held_keys: set[str] = set()

    def decide(
        self, state: RunState, turn: Step, findings: Sequence[Finding], *, is_denied: bool = False
    ) -> GateDecision | None:
        """Return the refusal of the calls of a proposed turn; None if they may run.

        Args:
            state: state of the run.
            turn: the proposed turn.
            findings: findings on the turn.
            is_denied: True if a person has refused the calls.
        """
        tools = [call.name for call in turn.tool_calls if not state.is_unknown_tool(call.name)]
        if not any(map(state.ledger.may_destroy, tools)):
            return None
        if not (state.capabilities.reject and state.capabilities.send_message):
            return None
        trigger = self._find_trigger(state, turn, findings, tools)
        if trigger is not None:
            is_malformed = trigger.detector in _MALFORMED_DETECTORS
            return GateDecision(trigger, MALFORMED_CALL_TRIGGER if is_malformed else EFFECT_TRIGGER)
        return self._find_repetition(state, turn, is_denied=is_denied)

    def _find_trigger(
        self, state: RunState, turn: Step, findings: Sequence[Finding], tools: Sequence[str]
    ) -> Finding | None:
        is_repeated = compute_call_signature(turn) in self._refused_turns
        may_repeat = is_repeated and not state.capabilities.escalate
        duplicate = find_duplicate_call(turn, state.ledger)
        if duplicate is not None and may_repeat and _is_requested(state, turn, duplicate):
            duplicate = None
        trigger = (
            most_severe(findings, state.config.effect_threshold)
            if duplicate is None
            else build_duplicate_finding(turn, duplicate)
        )
        if trigger is None:
            return None
        runs_once = duplicate is not None and state.ledger.forbids_repetition(duplicate.name)
        if not runs_once and not any(_is_declared_destructive(state, tool) for tool in tools):
            may_pass = is_repeated or self._has_used_hints(state) or _is_budget_exhausted(state, turn)
            return None if may_pass else trigger
        if is_repeated or trigger.detector in _CERTAIN_DETECTORS:
            return trigger
        return None if _is_budget_exhausted(state, turn) else trigger

    def _find_repetition(self, state: RunState, turn: Step, *, is_denied: bool) -> GateDecision | None:
        effect = find_repeated_call(turn, lambda: state.run.steps, state.ledger)
        if effect is None:
            return None
        levels = {one.name for one in state.config.planner.get_escalation(REPEATED_CALL_TRIGGER)}
        can_ask = "escalate" in levels and state.capabilities.escalate
        can_stop = "stop" in levels and state.capabilities.stop
        if effect.key in self._held_keys and not (can_ask or can_stop or is_denied):
            return None
        finding = build_repetition_finding(turn, effect, is_final=can_stop and not can_ask)
        return GateDecision(finding, EFFECT_TRIGGER if is_denied else REPEATED_CALL_TRIGGER)

    def _has_used_hints(self, state: RunState) -> bool:
        limit = state.config.recovery_budget.hints
        return limit is not None and len(self._refused_turns) >= limit

    def record_refusal(self, state: RunState, turn: Step, trigger: Finding) -> None:
        """Record that the calls of a turn were refused."""
        self._refused_turns.add(compute_call_signature(turn))
        if trigger.detector not in (DUPLICATE_CALL_TRIGGER, REPEATED_CALL_TRIGGER):
            return
        for call in turn.tool_calls:
            key = state.ledger.compute_key(call.name, call.arguments or {})
            # The calls of a refused pair may run one by one. After the first one, the other is a repetition.
            if trigger.detector == REPEATED_CALL_TRIGGER or not state.ledger.has_call(key):
                self._held_keys.add(key)


def _is_requested(state: RunState, turn: Step, duplicate: ToolCall) -> bool:
    """Return whether all calls of a turn are equal, and the user has requested their number."""
    keys = {state.ledger.compute_key(call.name, call.arguments or {}) for call in turn.tool_calls}
    if len(keys) > 1 or state.ledger.has_call(keys.pop()):
        return False
    run = state.run
    texts = (run.task, *(step.content for step in run.steps if step.source is Source.USER))
    return requests_equal_calls(texts, duplicate, len(turn.tool_calls))


def _is_declared_destructive(state: RunState, tool: str) -> bool:
    ledger = state.ledger
    return ledger.is_declared(tool) and ledger.get_tool_effect(tool).effect is EffectClass.DESTRUCTIVE


def _is_budget_exhausted(state: RunState, turn: Step) -> bool:
    return state.account.find_exceeded_limit(rollback_to=turn.index) is not None
