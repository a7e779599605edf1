"""``drop_tool``: take away the tool that the failure hangs on."""

from __future__ import annotations

from agentguard.recover.base import Plan, Situation, Tell, Tier, Withhold
from agentguard.recover.strategies._plan import plan, reject
from agentguard.recover.wording import advice


class DropTool:
    """For loops on one tool that hints do not end: an agent cannot call what it is not offered.

    Args:
        keep: tools that are never taken away.
    """

    name = "drop_tool"

    def __init__(self, *, keep: tuple[str, ...] | list[str] = (), **unknown: object) -> None:
        reject(self.name, unknown)
        self.keep = frozenset(keep)

    def plan(self, situation: Situation) -> Plan | None:
        """Withhold the tools that the step called; None if it called none that may be taken away."""
        if not (situation.can.withhold and situation.can.tell):
            return None
        offered = {tool.name for tool in situation.run.tools}
        called = {call.name for call in situation.run.steps[situation.hypothesis.step].tool_calls}
        tools = tuple(sorted(called & offered - self.keep if offered else called - self.keep))
        if not tools or offered == set(tools):
            return None  # an agent without any tool can do nothing but give up
        text = f"[guard] {', '.join(tools)} is not available any more. {advice(situation.hypothesis)}"
        actions = (Withhold(tools=tools), Tell(text=text))
        return plan(situation, self.name, Tier.SUBSTITUTE, *actions)
