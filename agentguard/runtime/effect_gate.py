"""Gate before calls whose effects may be irreversible: a suspicion that is too weak elsewhere stops them."""

from __future__ import annotations

from collections.abc import Sequence

from agentguard.detect.base import Finding
from agentguard.detect.step_facts import canonicalize_json
from agentguard.recover.tool_effects import EffectClass
from agentguard.runtime.duplicate_calls import (
    DUPLICATE_CALL_TRIGGER,
    build_duplicate_finding,
    find_duplicate_call,
)
from agentguard.runtime.live_diagnosis import most_severe
from agentguard.runtime.run_state import RunState
from agentguard.trajectory.model import Step

_CERTAIN_DETECTORS = frozenset({"schema_violation", DUPLICATE_CALL_TRIGGER})
"""Detectors whose findings are facts: arguments match a JSON Schema or not, and calls are equal or not."""


class EffectGate:
    """Gate of one run.

    - A finding from `SessionConfig.effect_threshold` on stops a call of an undeclared or destructive tool.
    - Two equal calls of such a tool in one turn are such a finding. They never run if the tool is declared
      destructive, or has the name of an irreversible action.
    - If the agent proposes the same call again, the call of an undeclared tool runs. At most as many calls of
      undeclared tools are stopped as the budget has hints, since each costs a model call.
    - The call of a tool that is declared destructive does not run: a person decides, or the run stops.
    """

    def __init__(self) -> None:
        self._refused_turns: set[tuple[tuple[str, str], ...]] = set()

    def find_trigger(self, state: RunState, turn: Step, findings: Sequence[Finding]) -> Finding | None:
        """Return the finding because of which the calls of a proposed turn must not run, if there is one."""
        tools = [call.name for call in turn.tool_calls if not state.is_unknown_tool(call.name)]
        if not any(map(state.ledger.may_destroy, tools)):
            return None
        duplicate = find_duplicate_call(turn, state.ledger)
        trigger = (
            most_severe(findings, state.config.effect_threshold)
            if duplicate is None
            else build_duplicate_finding(turn, duplicate)
        )
        if trigger is None or not (state.capabilities.reject and state.capabilities.send_message):
            return None
        is_repeated = _compute_signature(turn) in self._refused_turns
        runs_once = duplicate is not None and state.ledger.forbids_repetition(duplicate.name)
        if not runs_once and not any(_is_declared_destructive(state, tool) for tool in tools):
            may_pass = is_repeated or self._has_used_hints(state) or _is_budget_exhausted(state, turn)
            return None if may_pass else trigger
        if is_repeated or trigger.detector in _CERTAIN_DETECTORS:
            return trigger
        return None if _is_budget_exhausted(state, turn) else trigger

    def _has_used_hints(self, state: RunState) -> bool:
        limit = state.config.recovery_budget.hints
        return limit is not None and len(self._refused_turns) >= limit

    def record_refusal(self, turn: Step) -> None:
        """Record that the calls of a turn were refused."""
        self._refused_turns.add(_compute_signature(turn))


def _is_declared_destructive(state: RunState, tool: str) -> bool:
    ledger = state.ledger
    return ledger.is_declared(tool) and ledger.get_tool_effect(tool).effect is EffectClass.DESTRUCTIVE


def _is_budget_exhausted(state: RunState, turn: Step) -> bool:
    return state.account.find_exceeded_limit(rollback_to=turn.index) is not None


def _compute_signature(turn: Step) -> tuple[tuple[str, str], ...]:
    return tuple((call.name, canonicalize_json(call.arguments)) for call in turn.tool_calls)
