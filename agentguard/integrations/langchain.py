"""LangChain: the guard as a middleware of ``create_agent`` (langchain 1.4 or newer).

::

    agent = create_agent(model, tools, middleware=[guard.langchain(), ...])     # first in the list

*First* matters: the first middleware is the outermost, so its rewritten messages are what all others see.
Rollback truncates the messages in ``before_model``, at the boundary between turns; a jump back to the model
from ``after_model`` would skip the hooks of others, whose counters would stand still. Other state channels
(todos, counters) stay; forking the checkpoint restores those, too: with ``guard.langgraph(agent)`` around the
agent, the middleware leaves rollbacks to it and keeps to what it alone can do, refusing answers and tools.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NotRequired

from agentguard.errors import MissingExtra
from agentguard.live.acting import aundo_all, undo_all
from agentguard.live.session import Session
from agentguard.recover.base import (
    Capabilities,
    HandOver,
    Plan,
    Reject,
    Restart,
    Rewind,
    Stop,
    Tell,
    Withhold,
)
from agentguard.recover.ledger import Effect
from agentguard.trajectory.model import ToolSpec, Trajectory

try:
    from langchain.agents.middleware import AgentMiddleware, AgentState, hook_config
    from langchain.agents.middleware.types import PrivateStateAttr
    from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
    from langchain_core.utils.function_calling import convert_to_openai_tool
    from langgraph.graph.message import REMOVE_ALL_MESSAGES
except ImportError as error:
    raise MissingExtra("LangChain", "langchain") from error

from agentguard.integrations._langchain_messages import (
    guard_message,
    is_guards,
    step_of,
    stop_message,
    whole_turns,
)
from agentguard.integrations._langchain_run import AgentRun, acall_tool, call_tool, run_here

if TYPE_CHECKING:
    from agentguard.guard import Guard

_KEPT = 1024
"""Runs that one middleware keeps in memory; an older one that goes on is read anew from its messages."""

MOST_REFUSALS = 10


class GuardState(AgentState[Any]):
    """The agent's state with the guard's own channel; it never leaves the graph."""

    agentguard_run: NotRequired[Annotated[str, PrivateStateAttr]]


class GuardMiddleware(AgentMiddleware[Any, Any, Any]):
    """Guards every run of an agent.

    Args:
        guard: whose rules hold; `Guard.langchain` gives itself.
        name: of the agent, as the trajectory shows it.
        on_run: called with the session of each run when it begins, e.g. to keep it for looking at.
    """

    state_schema = GuardState

    def __init__(
        self, guard: Guard, *, name: str = "assistant", on_run: Callable[[Session], None] | None = None
    ) -> None:
        super().__init__()
        self._guard, self._agent, self._on_run = guard, name, on_run
        self._runs: OrderedDict[str, AgentRun] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """Name of the middleware in the graph."""
        return "agentguard"

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Name the run: a new one for each invocation, on a thread with a history as well."""
        del state, runtime
        return {"agentguard_run": uuid.uuid4().hex[:12]}

    async def abefore_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """As `before_agent`."""
        return self.before_agent(state, runtime)

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Take in what happened since the last model call, and do what is to be done first."""
        del runtime
        run = self._own(state)
        if run is None:
            return None  # the first model call begins the session, since it knows the tools
        messages = self._take_in(run, state)
        plan = run.session.boundary()
        if plan is None:
            return self._ended(run)
        return self._rewritten(run, messages, plan, undo_all(run.session, plan))

    @hook_config(can_jump_to=["end"])
    async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """As `before_model`; undo functions may be coroutine functions."""
        del runtime
        run = self._own(state)
        if run is None:
            return None  # the first model call begins the session, since it knows the tools
        messages = self._take_in(run, state)
        plan = run.session.boundary()
        if plan is None:
            return self._ended(run)
        return self._rewritten(run, messages, plan, await aundo_all(run.session, plan))

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Ask the model, and again with the correction where its answer is refused before any tool ran."""
        run = self._begun(request)
        response = handler(self._offered(run, request))
        for _ in range(MOST_REFUSALS):
            plan = self._refused(run, response)
            if plan is None:
                break
            if not _asks_again(plan):
                return _stopped(run) or response
            request = request.override(messages=[*request.messages, *_told(run, plan)])
            response = handler(self._offered(run, request))
        return response

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """As `wrap_model_call`."""
        run = self._begun(request)
        response = await handler(self._offered(run, request))
        for _ in range(MOST_REFUSALS):
            plan = self._refused(run, response)
            if plan is None:
                break
            if not _asks_again(plan):
                return _stopped(run) or response
            request = request.override(messages=[*request.messages, *_told(run, plan)])
            response = await handler(self._offered(run, request))
        return response

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Let each effect happen once."""
        return call_tool(self._revived(request.state), request, handler)

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """As `wrap_tool_call`."""
        return await acall_tool(self._revived(request.state), request, handler)

    @hook_config(can_jump_to=["model"])
    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Accept the end of the run, or send the agent back."""
        del runtime
        run = self._own(state)
        if run is None:
            return None
        messages = self._take_in(run, state)
        plan = run.session.end()
        if plan is None:
            return None
        update = self._rewritten(run, messages, plan, undo_all(run.session, plan))
        return {"jump_to": "model", **update} if "jump_to" not in update else None

    @hook_config(can_jump_to=["model"])
    async def aafter_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """As `after_agent`."""
        del runtime
        run = self._own(state)
        if run is None:
            return None
        messages = self._take_in(run, state)
        plan = run.session.end()
        if plan is None:
            return None
        update = self._rewritten(run, messages, plan, await aundo_all(run.session, plan))
        return {"jump_to": "model", **update} if "jump_to" not in update else None

    def session_of(self, state: Mapping[str, Any]) -> Session | None:
        """The session of a run, from inside the graph (a tool, another middleware); None before it began."""
        run = self._known(state)
        return None if run is None else run.session

    def _known(self, state: Mapping[str, Any]) -> AgentRun | None:
        return run_here() or self._runs.get(state.get("agentguard_run", ""))

    def _own(self, state: Mapping[str, Any]) -> AgentRun | None:
        """The run, unless a guarded graph sees to the boundaries and the end."""
        return None if run_here() is not None else self._known(state)

    def _begun(self, request: Any) -> AgentRun:
        """The run of a model call; the first call begins its session, as does the first in a new process."""
        run = self._known(request.state)
        if run is None:
            run = self._open(request.state, request.tools, request.system_message)
            self._take_in(run, request.state)
        return run

    def _revived(self, state: Mapping[str, Any]) -> AgentRun | None:
        """The run of a tool call; one that died in the midst of its tools comes back from the store."""
        run = self._known(state)
        if run is not None or self._guard.parts.store is None or not state.get("agentguard_run"):
            return run
        run = self._open(state, (), None)
        self._take_in(run, {"messages": whole_turns(state["messages"])})
        return run

    def _open(self, state: Mapping[str, Any], tools: Sequence[Any], system: Any) -> AgentRun:
        with self._lock:
            key = state.get("agentguard_run") or uuid.uuid4().hex[:12]
            if key in self._runs:
                return self._runs[key]
            run = self._runs[key] = self._made(key, state["messages"], tools, system)
            while len(self._runs) > _KEPT:
                self._runs.popitem(last=False)
        if self._on_run is not None:
            self._on_run(run.session)
        return run

    def _made(self, key: str, messages: Sequence[AnyMessage], tools: Sequence[Any], system: Any) -> AgentRun:
        asked = [m for m in messages if isinstance(m, HumanMessage) and not is_guards(m)]
        meta = Trajectory(
            id=key,
            format="event_log",
            task=asked[-1].text if asked else "",
            steps=(),
            tools=tuple(_spec(tool) for tool in tools),
            system_prompts={self._agent: system.text} if system is not None else {},
        )
        can = Capabilities(reject=True, truncate=True, compensate=True, withhold=True, restart=True)
        # A run that has answers before its first call here began in another process; the store may know it.
        begun = bool(asked) and any(isinstance(m, AIMessage) for m in messages[messages.index(asked[-1]) :])
        resume = begun and self._guard.parts.store is not None
        run = AgentRun(self._guard.session(meta, can, resume=resume))
        run.line.adopt(messages, len(run.session))
        return run

    def _take_in(self, run: AgentRun, state: Mapping[str, Any]) -> list[AnyMessage]:
        """Commit the turns that the session has not seen; returns all messages."""
        messages = list(state["messages"])
        for turn in run.line.fresh(messages, len(run.session)):
            run.session.commit(step_of(turn, agent=self._agent))
        return messages

    def _refused(self, run: AgentRun, response: Any) -> Plan | None:
        answer = next((m for m in _messages(response) if isinstance(m, AIMessage)), None)
        if answer is None:
            return None
        return run.session.propose(step_of([answer], agent=self._agent))

    def _offered(self, run: AgentRun, request: Any) -> Any:
        if not run.withheld:
            return request
        kept = [tool for tool in request.tools if _tool_name(tool) not in run.withheld]
        return request.override(tools=kept)

    def _rewritten(
        self, run: AgentRun, messages: list[AnyMessage], plan: Plan, failed: Sequence[Effect]
    ) -> dict[str, Any]:
        """The state update that makes the agent's messages agree with the plan."""
        kept, told = messages, _told(run, plan)
        for action in plan.actions:
            if isinstance(action, Rewind):
                kept = run.line.cut(messages, action.to_step)
            elif isinstance(action, Restart):
                kept = run.line.cut(messages, 0)
                told = [*told, guard_message(action.note)]
            elif isinstance(action, Withhold):
                run.withheld |= set(action.tools)
            elif isinstance(action, Stop):
                return {"jump_to": "end", "messages": [stop_message(action.reason)]}
        if failed:
            names = ", ".join(effect.tool for effect in failed)
            told = [*told, guard_message(f"[guard] Undoing {names} failed: what it did still stands.")]
        if kept is messages:
            return {"messages": told}
        return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *kept, *told]}

    def _ended(self, run: AgentRun) -> dict[str, Any] | None:
        if run.session.stopped is None:
            return None
        return {"jump_to": "end", "messages": [stop_message(run.session.stopped)]}


def _stopped(run: AgentRun) -> AIMessage | None:
    """What stands in place of an answer whose tools must not run, since the guard ended the run."""
    reason = run.session.stopped
    return None if reason is None else stop_message(reason)


def _asks_again(plan: Plan) -> bool:
    return any(isinstance(action, Reject | HandOver) for action in plan.actions)


def _told(run: AgentRun, plan: Plan) -> list[HumanMessage]:
    return [guard_message(action.text) for action in plan.actions if isinstance(action, Tell)] + [
        guard_message(run.ask(action.question) if run.ask is not None else action.question)
        for action in plan.actions
        if isinstance(action, HandOver)
    ]


def _messages(response: Any) -> Sequence[Any]:
    inner = getattr(response, "model_response", response)
    return getattr(inner, "result", None) or [inner]


def _tool_name(tool: Any) -> str:
    if isinstance(tool, Mapping):
        return str(tool.get("name") or (tool.get("function") or {}).get("name", ""))
    return str(getattr(tool, "name", ""))


def _spec(tool: Any) -> ToolSpec:
    try:
        function = convert_to_openai_tool(tool)["function"]
    except (KeyError, TypeError, ValueError):  # a provider's own tool has a name at most
        return ToolSpec(name=_tool_name(tool))
    return ToolSpec(
        name=function["name"],
        description=function.get("description") or "",
        parameters=function.get("parameters") or {},
    )


__all__ = ["GuardMiddleware", "GuardState"]
