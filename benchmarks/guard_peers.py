"""Cost of alternatives to the guard, over the same turns in the same process; used by `guard.py`."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from guard_turns import Turn
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool

from agentguard.guard import Guard
from agentguard.trajectory.event_log.recorder import RunRecorder
from agentguard.trajectory.model import Trajectory

ARMS = ("langchain", "langchain, empty middleware", "langchain, guard")


class Scripted(BaseChatModel):
    """Scripted chat model that returns the turns in order."""

    script: list[Any]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **more: Any) -> Any:
        del tools, more
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **more: Any) -> ChatResult:
        del messages, args, more
        message = self.script.pop(0) if self.script else AIMessage("That is all.")
        return ChatResult(generations=[ChatGeneration(message=message)])


class Empty(AgentMiddleware):
    """Middleware with the guard's hooks, all empty."""

    def before_model(self, *_: Any) -> None:
        """Do nothing."""

    def after_model(self, *_: Any) -> None:
        """Do nothing."""

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Do nothing more."""
        return handler(request)


def peers(
    made: Sequence[Turn], meta: Trajectory, guard: Callable[[], Guard], *, repeats: int
) -> dict[str, float]:
    """Return microseconds per turn: median for the recorder, mean over a run for LangChain's agent."""
    taken: dict[str, list[float]] = {"recorder without rules": []} | {arm: [] for arm in ARMS}
    for _ in range(repeats):
        taken["recorder without rules"] += recorded(made, meta)
        for arm in ARMS:
            taken[arm].append(langchain(arm, made, meta.task, guard()))
    return {name: round(statistics.median(times), 1) for name, times in taken.items()}


def recorded(made: Sequence[Turn], meta: Trajectory) -> list[float]:
    """Return the microseconds of each turn in a plain recorder."""
    recorder, taken = RunRecorder(meta), []
    for turn in made:
        start = time.perf_counter()
        recorder.add(turn.whole)
        taken.append((time.perf_counter() - start) * 1e6)
    return taken


def langchain(arm: str, made: Sequence[Turn], task: str, guard: Guard) -> float:
    """Return microseconds per turn of LangChain's agent, whose turns cannot be timed separately."""
    answers = [turn.whole.observations[0].content for turn in made]
    tools = [_tool(name, answers) for name in ("get_order", "change_order")]
    middleware = {ARMS[0]: [], ARMS[1]: [Empty()], ARMS[2]: [guard.langchain()]}[arm]
    agent = create_agent(Scripted(script=[_message(turn) for turn in made]), tools, middleware=middleware)
    gc.collect()
    start = time.perf_counter()
    agent.invoke({"messages": [HumanMessage(task)]}, {"recursion_limit": 100 * len(made)})
    spent = time.perf_counter() - start
    if answers:
        raise SystemExit(f"{arm}: {len(answers)} calls were not made")
    return spent * 1e6 / len(made)


def _tool(name: str, answers: list[str]) -> StructuredTool:
    def answer(order_id: str, count: int, note: str) -> str:
        del order_id, count, note
        return answers.pop(0)

    return StructuredTool.from_function(answer, name=name, description=f"{name} of the warehouse")


def _message(turn: Turn) -> AIMessage:
    call = turn.proposed.tool_calls[0]
    return AIMessage(
        turn.proposed.content,
        tool_calls=[{"id": call.id, "name": call.name, "args": dict(call.arguments or {})}],
    )
