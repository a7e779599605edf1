"""``stop``: end the run before it does harm; the last rung of every ladder."""

from __future__ import annotations

from agentguard.recover.base import Plan, Situation, Stop, Tier
from agentguard.recover.strategies._plan import plan, reject


class StopRun:
    """Ends the run with the reason."""

    name = "stop"

    def __init__(self, **unknown: object) -> None:
        reject(self.name, unknown)

    def plan(self, situation: Situation) -> Plan | None:
        """Stop, if the integration can."""
        if not situation.can.stop:
            return None
        held = situation.hypothesis
        reason = f"stopped at step {situation.last}: {held.reason or 'a failure that could not be corrected'}"
        return plan(situation, self.name, Tier.STOP, Stop(reason=reason))
