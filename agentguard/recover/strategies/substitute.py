"""``substitute``: replace a tool, an agent or a model with another."""

from __future__ import annotations

from collections.abc import Mapping

from agentguard.errors import ConfigError
from agentguard.recover.actions import SendMessage, Substitute
from agentguard.recover.agent_messages import format_hint
from agentguard.recover.base_strategy import BaseStrategy
from agentguard.recover.plan import RecoveryPlan, RecoveryTier
from agentguard.recover.strategies._plan import build_plan, reject_unknown_options
from agentguard.recover.strategy import RecoveryContext


class SubstituteStrategy(BaseStrategy):
    """Next alternate of a recovery block (Randell 1975), configured by the user.

    Args:
        tools, agents, models: substitute of each tool, agent or model by name; ``"*"`` is any model.
    """

    name = "substitute"

    def __init__(
        self,
        *,
        tools: Mapping[str, str] | None = None,
        agents: Mapping[str, str] | None = None,
        models: Mapping[str, str] | None = None,
        **unknown: object,
    ) -> None:
        reject_unknown_options(self.name, unknown)
        self.tools, self.agents, self.models = dict(tools or {}), dict(agents or {}), dict(models or {})
        if not (self.tools or self.agents or self.models):
            raise ConfigError("strategy 'substitute': name at least one of tools, agents, models to replace")

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Replace the step's tool, else its agent, else its model; None if none of them has a substitute."""
        chosen = self._select_substitute(context)
        if chosen is None or not (context.capabilities.substitute and context.capabilities.send_message):
            return None
        told = SendMessage(text=format_hint(context.hypothesis))
        return build_plan(context, self.name, RecoveryTier.SUBSTITUTE, chosen, told)

    def _select_substitute(self, context: RecoveryContext) -> Substitute | None:
        step = context.run.steps[context.hypothesis.step]
        for call in step.tool_calls:
            if call.name in self.tools:
                return Substitute(what="tool", name=call.name, by=self.tools[call.name])
        if step.agent in self.agents:
            return Substitute(what="agent", name=step.agent, by=self.agents[step.agent])
        model = step.model or "*"
        by = self.models.get(model, self.models.get("*"))
        return None if by is None or by == model else Substitute(what="model", name=model, by=by)
