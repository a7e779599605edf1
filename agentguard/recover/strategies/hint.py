"""``hint``: send the agent a corrective message; it continues from its last step."""

from __future__ import annotations

from agentguard.recover.actions import SendMessage
from agentguard.recover.agent_messages import format_hint
from agentguard.recover.plan import RecoveryPlan, RecoveryTier
from agentguard.recover.strategies._plan import build_plan, reject_unknown_options
from agentguard.recover.strategy import BaseStrategy, RecoveryContext


class HintStrategy(BaseStrategy):
    """Hint to the agent, the cheapest strategy.

    Models often ignore a hint, so an escalation policy needs further levels.
    """

    name = "hint"

    def __init__(self, **unknown: object) -> None:
        reject_unknown_options(self.name, unknown)

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Send a hint at the next boundary; None if the integration cannot send messages."""
        if not context.capabilities.send_message:
            return None
        return build_plan(
            context, self.name, RecoveryTier.HINT, SendMessage(text=format_hint(context.hypothesis))
        )
