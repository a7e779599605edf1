"""Equal calls within one turn: an acting call that the agent made twice, probably by mistake."""

from __future__ import annotations

from typing import Final

from agentguard.detect.base import Finding
from agentguard.recover.effect_ledger import EffectLedger
from agentguard.trajectory.model import Step, ToolCall

DUPLICATE_CALL_TRIGGER: Final = "duplicate_call"
"""Detector name of the findings."""

_CODES = ("mast:step_repetition",)


def find_duplicate_call(turn: Step, ledger: EffectLedger) -> ToolCall | None:
    """Return a call of an undeclared or destructive tool that a turn makes for the second time.

    Calls are equal if the ledger gives them one key. A tool that is idempotent or has an idempotency key is
    exempt, because a second call has no further effect.
    """
    seen: set[str] = set()
    for call in turn.tool_calls:
        effect = ledger.get_tool_effect(call.name)
        if not ledger.may_destroy(call.name) or effect.idempotent or effect.key:
            continue
        key = ledger.compute_key(call.name, call.arguments or {})
        if key in seen:
            return call
        seen.add(key)
    return None


def build_duplicate_finding(turn: Step, call: ToolCall) -> Finding:
    """Build the finding for a call that `find_duplicate_call` returned."""
    return Finding(
        detector=DUPLICATE_CALL_TRIGGER,
        step=turn.index,
        codes=_CODES,
        probability=1.0,
        message=f"{turn.agent} calls {call.name} twice with the same arguments in one turn.",
        correction=f"Call {call.name} once. If it must act twice, make the second call after you have seen "
        "the result of the first one.",
    )
