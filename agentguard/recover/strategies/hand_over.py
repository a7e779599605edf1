"""``hand_over``: ask a person, and wait."""

from __future__ import annotations

from agentguard.recover.base import HandOver, Plan, Situation, Tier
from agentguard.recover.strategies._plan import plan, reject
from agentguard.recover.wording import advice, listed


class HandOverToPerson:
    """For what no machine should decide alone."""

    name = "hand_over"

    def __init__(self, **unknown: object) -> None:
        reject(self.name, unknown)

    def plan(self, situation: Situation) -> Plan | None:
        """A question that says what is wrong, what was proposed and what has already happened."""
        if not situation.can.hand_over:
            return None
        held = situation.hypothesis
        question = f"Step {held.step} ({held.agent}): {held.reason} Proposed: {advice(held)}"
        done = situation.ledger.standing()
        if done:
            question += f" Already in effect: {listed(done)}."
        return plan(situation, self.name, Tier.HAND_OVER, HandOver(question=question))
