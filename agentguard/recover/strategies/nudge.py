"""``nudge``: tell the agent what is wrong and let it go on; nothing is taken back."""

from __future__ import annotations

from agentguard.recover.base import Plan, Situation, Tell, Tier
from agentguard.recover.strategies._plan import plan, reject
from agentguard.recover.wording import hint


class Nudge:
    """The cheapest recovery. Models often ignore a mere hint, so a ladder goes on from here."""

    name = "nudge"

    def __init__(self, **unknown: object) -> None:
        reject(self.name, unknown)

    def plan(self, situation: Situation) -> Plan | None:
        """A hint at the next boundary."""
        if not situation.can.tell:
            return None
        return plan(situation, self.name, Tier.NUDGE, Tell(text=hint(situation.hypothesis)))
