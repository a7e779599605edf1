"""``escalate``: ask a person and wait."""

from __future__ import annotations

from agentguard.recover.actions import Escalate
from agentguard.recover.agent_messages import format_advice, format_calls, format_effects
from agentguard.recover.plan import RecoveryPlan, RecoveryTier
from agentguard.recover.strategies._plan import build_plan, reject_unknown_options
from agentguard.recover.strategy import BaseStrategy, RecoveryContext


class EscalateStrategy(BaseStrategy):
    """Strategy for decisions that a person must make."""

    name = "escalate"

    def __init__(self, **unknown: object) -> None:
        reject_unknown_options(self.name, unknown)

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Ask about the failure, with the proposed correction and the effects so far."""
        if not context.capabilities.escalate:
            return None
        hypothesis = context.hypothesis
        question = (
            f"Step {hypothesis.step} ({hypothesis.agent}): {hypothesis.reason} "
            f"Proposed: {format_advice(hypothesis)}"
        )
        done = context.ledger.list_active()
        if done:
            question += f" Calls that took effect: {format_effects(done)}."
        calls = () if context.is_committed else context.run.steps[-1].tool_calls
        if calls:
            question += (
                f' The agent requests {format_calls(calls)}. Answer "yes" to run it. Any other answer is '
                "sent to the agent, and the call does not run."
            )
        return build_plan(context, self.name, RecoveryTier.ESCALATE, Escalate(question=question))
