"""``reprompt``: refuse the answer that is not committed yet, and ask again with the correction."""

from __future__ import annotations

from agentguard.recover.base import Plan, Reject, Situation, Tell, Tier
from agentguard.recover.strategies._plan import plan, reject
from agentguard.recover.wording import correction


class Reprompt:
    """T0: no tool has run yet, so nothing has to be undone. Only for a fault of the last step."""

    name = "reprompt"

    def __init__(self, **unknown: object) -> None:
        reject(self.name, unknown)

    def plan(self, situation: Situation) -> Plan | None:
        """Reject the last step and ask again; None where it is committed or not the one at fault."""
        if situation.committed or situation.hypothesis.step != situation.last:
            return None
        if not (situation.can.reject and situation.can.tell):
            return None
        # Effects of lines that were left stay out of the agent's sight: they are told here, too.
        told = correction(situation.hypothesis, situation.ledger.since(situation.last))
        return plan(situation, self.name, Tier.REJECT, Reject(), Tell(text=told), undone=1)
