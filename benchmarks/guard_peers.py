"""Cost of alternatives to the guard, over the same turns in the same process; used by `guard.py`."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from guard_turns import Turn
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ModelCallLimitMiddleware,
    ToolCallLimitMiddleware,
    ToolRetryMiddleware,
)
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from agentguard.guard import Guard
from agentguard.trajectory.event_log.recorder import RunRecorder
from agentguard.trajectory.model import Trajectory

ARMS = (
    "langchain",
    "langchain, empty middleware",
    "langchain, its own limits and retries",
    "langchain, guard",
)
GRAPH_ARMS = ("langgraph, processor time", "langgraph, guard, processor time")


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
    taken: dict[str, list[float]] = {"recorder without rules": []}
    taken |= {arm: [] for arm in (*ARMS, *GRAPH_ARMS)}
    for _ in range(repeats):
        taken["recorder without rules"] += recorded(made, meta)
        for arm in ARMS:
            taken[arm].append(langchain(arm, made, meta.task, guard()))
        for arm in GRAPH_ARMS:
            taken[arm].append(langgraph(arm, made, meta.task, guard()))
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
    middleware = _build_middleware(arm, guard, len(made))
    agent = create_agent(Scripted(script=[_message(turn) for turn in made]), tools, middleware=middleware)
    gc.collect()
    start = time.perf_counter()
    agent.invoke({"messages": [HumanMessage(task)]}, {"recursion_limit": 100 * len(made)})
    spent = time.perf_counter() - start
    if answers:
        raise SystemExit(f"{arm}: {len(answers)} calls were not made")
    return spent * 1e6 / len(made)


def _build_middleware(arm: str, guard: Guard, turn_count: int) -> list[AgentMiddleware]:
    if arm == ARMS[1]:
        return [Empty()]
    if arm == ARMS[2]:
        limit = turn_count + 2
        return [
            ModelCallLimitMiddleware(run_limit=limit),
            ToolCallLimitMiddleware(run_limit=limit),
            ToolRetryMiddleware(),
        ]
    return [guard.langchain()] if arm == ARMS[3] else []


def langgraph(arm: str, made: Sequence[Turn], task: str, guard: Guard) -> float:
    """Return microseconds of processor time per turn of a graph with a checkpointer in memory."""
    answers = [turn.whole.observations[0].content for turn in made]
    tools = [_tool(name, answers) for name in ("get_order", "change_order")]
    is_guarded, model = arm == GRAPH_ARMS[1], Scripted(script=[_message(turn) for turn in made])
    graph = StateGraph(MessagesState).add_edge(START, "model").add_edge("tools", "model")
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", guard.langgraph_tools(tools) if is_guarded else ToolNode(tools))
    graph.add_conditional_edges("model", tools_condition)
    compiled = graph.compile(checkpointer=InMemorySaver())
    app = guard.langgraph(compiled) if is_guarded else compiled
    config = {"recursion_limit": 100 * len(made), "configurable": {"thread_id": "1"}}
    gc.collect()
    start = time.process_time()
    app.invoke({"messages": [HumanMessage(task)]}, config)
    spent = time.process_time() - start
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
