"""One guarded run of a LangChain agent, and how its tools are called: shared by middleware and graph."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp

from agentguard import _sync_async
from agentguard.integrations.langchain.messages import MessageBranch
from agentguard.integrations.langchain.tool_wrapper import Claims, Watched
from agentguard.runtime.session import Session
from agentguard.runtime.tool_execution import run_with_read_retry

RUN = "__agentguard_run"
"""Where a guarded graph puts its run in ``configurable``; two underscores keep it out of checkpoints."""

_NESTED = "|"
"""Parts the names of a node and of the sub-graph's node in it, in LangGraph's checkpoint namespaces."""


class AgentRun:
    """One run of the agent: its session, its messages by step, and the tools that were taken away."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.line = MessageBranch()
        self.withheld: set[str] = set()
        self.offered: set[str] = set()
        self.output: Any = None
        """Tools that the session knows of, and the structured output whose tools are among them."""
        self.ask: Callable[[str], str] | None = None
        """Puts a question to a person, where somebody can be asked."""
        self.claims = Claims(session)


def run_here(*, nested: bool = False) -> AgentRun | None:
    """The run of the guarded graph whose node this is called in; None outside of one.

    Args:
        nested: in its sub-graphs, too: their tools are tools of the run, their messages are not.
    """
    try:
        given: Mapping[str, Any] = get_config().get("configurable", {})
    except RuntimeError:  # outside of any graph
        return None
    run = given.get(RUN)
    inside = _NESTED in (given.get("checkpoint_ns") or "")
    return run if isinstance(run, AgentRun) and (nested or not inside) else None


def call_tool(run: AgentRun | None, request: Any, handler: Callable[[Any], Any]) -> Any:
    """Call a tool so that each effect happens once; without a run it is just called."""
    return handler(request) if run is None else _sync_async.run_sync(_called(run, request), handler)


async def acall_tool(run: AgentRun | None, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
    """As `call_tool`, for a tool that is awaited."""
    return await (handler(request) if run is None else _sync_async.run_async(_called(run, request), handler))


def _called(run: AgentRun, request: Any) -> _sync_async.Effects[Any]:
    """Yields the request where the tool is to run; is sent what it returned."""
    call = request.tool_call
    claim = run.claims.of(call)
    watched = Watched(run.claims, claim, call)
    if request.tool is None:  # another middleware brings the tool along
        if (known := watched.recorded()) is not None:
            return known
    else:
        request = request.override(tool=watched.tool(request.tool))
    if watched.returned:  # what is wrapped around the tool may still have something to do or to ask
        return (yield request)
    try:
        result = yield from run_with_read_retry(
            run.session, claim, request, _said, control_exceptions=(GraphBubbleUp,)
        )
    except GraphBubbleUp:
        if not watched.returned:
            run.claims.refused(claim, call)  # it only paused: it will be called again
        raise
    watched.settle(result)
    return result


def _said(result: Any) -> tuple[str, bool | None]:
    """What a tool returned, and whether it failed; a command of the graph is no result and no failure."""
    if not isinstance(result, ToolMessage):
        return "a command", False
    return result.text, True if result.status == "error" else None
