"""``alternate``: let another tool, agent or model take over."""

from __future__ import annotations

from collections.abc import Mapping

from agentguard.errors import ConfigError
from agentguard.recover.base import Plan, Situation, Substitute, Tell, Tier
from agentguard.recover.strategies._plan import plan, reject
from agentguard.recover.wording import hint


class Alternate:
    """A recovery block's next alternate (Randell 1975), named by the user beforehand.

    Args:
        tools, agents, models: name to the name that takes its place; for models, ``"*"`` is any.
    """

    name = "alternate"

    def __init__(
        self,
        *,
        tools: Mapping[str, str] | None = None,
        agents: Mapping[str, str] | None = None,
        models: Mapping[str, str] | None = None,
        **unknown: object,
    ) -> None:
        reject(self.name, unknown)
        self.tools, self.agents, self.models = dict(tools or {}), dict(agents or {}), dict(models or {})
        if not (self.tools or self.agents or self.models):
            raise ConfigError("strategy 'alternate': name at least one of tools, agents, models to replace")

    def plan(self, situation: Situation) -> Plan | None:
        """Replace the tool the step called, else its agent, else its model; None if none has an alternate."""
        chosen = self._chosen(situation)
        if chosen is None or not (situation.can.substitute and situation.can.tell):
            return None
        told = Tell(text=hint(situation.hypothesis))
        return plan(situation, self.name, Tier.SUBSTITUTE, chosen, told)

    def _chosen(self, situation: Situation) -> Substitute | None:
        step = situation.run.steps[situation.hypothesis.step]
        for call in step.tool_calls:
            if call.name in self.tools:
                return Substitute(what="tool", name=call.name, by=self.tools[call.name])
        if step.agent in self.agents:
            return Substitute(what="agent", name=step.agent, by=self.agents[step.agent])
        model = step.model or "*"
        by = self.models.get(model, self.models.get("*"))
        return None if by is None or by == model else Substitute(what="model", name=model, by=by)
