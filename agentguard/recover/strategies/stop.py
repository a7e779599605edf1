"""``stop``: end the run before it does harm; usually the last level of an escalation policy."""

from __future__ import annotations

from agentguard.recover.actions import Stop
from agentguard.recover.base_strategy import BaseStrategy
from agentguard.recover.plan import RecoveryPlan, RecoveryTier
from agentguard.recover.strategies._plan import build_plan, reject_unknown_options
from agentguard.recover.strategy import RecoveryContext


class StopStrategy(BaseStrategy):
    """Strategy that ends the run and gives the reason."""

    name = "stop"

    def __init__(self, **unknown: object) -> None:
        reject_unknown_options(self.name, unknown)

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Stop the run; None if the integration cannot."""
        if not context.capabilities.stop:
            return None
        held = context.hypothesis
        reason = (
            f"stopped at step {context.last_step}: {held.reason or 'a failure that could not be corrected'}"
        )
        return build_plan(context, self.name, RecoveryTier.STOP, Stop(reason=reason))
