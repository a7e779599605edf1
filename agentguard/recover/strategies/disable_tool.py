"""``disable_tool``: disable the tools of the faulty step."""

from __future__ import annotations

from agentguard.recover.actions import DisableTools, SendMessage
from agentguard.recover.agent_messages import format_advice
from agentguard.recover.plan import RecoveryPlan, RecoveryTier
from agentguard.recover.strategies._plan import build_plan, reject_unknown_options
from agentguard.recover.strategy import BaseStrategy, RecoveryContext


class DisableToolStrategy(BaseStrategy):
    """Strategy against loops that hints do not end: the agent loses the tools of the faulty step.

    Args:
        keep: tools that are never disabled.
    """

    name = "disable_tool"

    def __init__(self, *, keep: tuple[str, ...] | list[str] = (), **unknown: object) -> None:
        reject_unknown_options(self.name, unknown)
        self.keep = frozenset(keep)

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Disable the tools that the step called; None if it called no tool that may be disabled."""
        if not (context.capabilities.disable_tools and context.capabilities.send_message):
            return None
        offered = {tool.name for tool in context.run.tools}
        called = {call.name for call in context.run.steps[context.hypothesis.step].tool_calls}
        tools = tuple(sorted(called & offered - self.keep if offered else called - self.keep))
        if not tools or offered == set(tools):
            return None  # an agent without tools cannot continue
        text = f"[guard] No longer available: {', '.join(tools)}. {format_advice(context.hypothesis)}"
        actions = (DisableTools(tools=tools), SendMessage(text=text))
        return build_plan(context, self.name, RecoveryTier.SUBSTITUTE, *actions)
