"""LangChain: the guard as a middleware of ``create_agent`` (langchain 1.4 or newer).

::

    agent = create_agent(model, tools, middleware=[guard.langchain(), ...])     # first in the list

The guard must be *first*: the first middleware is the outermost, so all others see its changed messages.

A rollback truncates the messages in ``before_model``, at the boundary between turns. A jump back to the model
from ``after_model`` would skip the hooks of other middleware; their counters would miss a call.

Other state channels (todos, counters) keep their values. To restore them too, wrap the agent with
``guard.langgraph(agent)``, which forks the checkpoint. The middleware then makes no rollbacks; it only
rejects responses and disables tools.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NotRequired

from agentguard import _sync_async
from agentguard.errors import MissingExtra, RecoveryError
from agentguard.runtime.session import MAX_REJECTIONS, Session, end_session, resolve_turn
from agentguard.runtime.tool_execution import aundo_effects, undo_effects
from agentguard.trajectory.model import Step

try:
    from langchain.agents.middleware import AgentMiddleware, AgentState, hook_config
    from langchain.agents.middleware.types import PrivateStateAttr
    from langchain_core.messages import HumanMessage, RemoveMessage
except ImportError as error:
    raise MissingExtra("LangChain", "langchain") from error

from agentguard.integrations.langchain.run import AgentRun, acall_tool, call_tool, get_current_run
from agentguard.integrations.langchain.run_registry import AgentRunRegistry
from agentguard.integrations.langchain.state_updates import (
    build_candidate_request,
    build_end_update,
    build_guard_messages,
    build_plan_update,
    build_selected_response,
    build_stop_response,
    parse_response,
    prepend_messages,
    remove_disabled_tools,
    requests_new_response,
)

if TYPE_CHECKING:
    from agentguard.guard import Guard


class GuardState(AgentState[Any]):
    """State of the agent with the guard's own channel, which is private to the graph."""

    agentguard_run: NotRequired[Annotated[str, PrivateStateAttr]]


class GuardMiddleware(AgentMiddleware[Any, Any, Any]):
    """Middleware that guards every run of an agent.

    Args:
        guard: the guard whose rules apply; set by `Guard.langchain`.
        name: name of the agent in the trajectory.
        on_run: called with the session of each run when the run begins, for example to inspect it later.
        models: chat models by name, for candidates of a turn; ``init_chat_model`` creates others by name.
    """

    state_schema = GuardState

    def __init__(
        self,
        guard: Guard,
        *,
        name: str = "assistant",
        on_run: Callable[[Session], None] | None = None,
        models: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._models = dict(models or {})
        self._runs = AgentRunRegistry(guard, agent=name, on_run=on_run)

    @property
    def name(self) -> str:
        """Return the name of the middleware in the graph."""
        return "agentguard"

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Create the ID of the run: a new one for each invocation, even on a thread with a history."""
        del state, runtime
        return {"agentguard_run": uuid.uuid4().hex[:12]}

    async def abefore_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Run like `before_agent`."""
        return self.before_agent(state, runtime)

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Commit the turns since the last model call, and apply a due recovery."""
        del runtime
        return _sync_async.run_sync(self._handle_boundary(state), lambda plan: undo_effects(*plan))

    @hook_config(can_jump_to=["end"])
    async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Run like `before_model`; undo functions may be coroutine functions."""
        del runtime
        return await _sync_async.run_async(self._handle_boundary(state), lambda plan: aundo_effects(*plan))

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Call the model; retry with a correction if the guard rejects the response before its tools run."""
        return _sync_async.run_sync(self._resolve_response(request), handler)

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Run like `wrap_model_call`."""
        return await _sync_async.run_async(self._resolve_response(request), handler)

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Call a tool through the effect ledger, so that each effect happens once."""
        return call_tool(self._runs.get_or_restore(request.state), request, handler)

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Run like `wrap_tool_call`."""
        return await acall_tool(self._runs.get_or_restore(request.state), request, handler)

    @hook_config(can_jump_to=["model"])
    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Accept the end of the run, or continue the run with a model call."""
        del runtime
        return _sync_async.run_sync(self._handle_end(state), lambda plan: undo_effects(*plan))

    @hook_config(can_jump_to=["model"])
    async def aafter_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Run like `after_agent`; undo functions may be coroutine functions."""
        del runtime
        return await _sync_async.run_async(self._handle_end(state), lambda plan: aundo_effects(*plan))

    def get_session(self, state: Mapping[str, Any]) -> Session | None:
        """Return the session of a run, for tools and other middleware; None before the run begins."""
        run = self._runs.get(state)
        return None if run is None else run.session

    def _handle_boundary(self, state: Any) -> _sync_async.SharedBody[dict[str, Any] | None]:
        """Handle a boundary between turns.

        Yield a session and its plan; receive the effects whose undo failed.
        """
        run = self._find_run(state)
        if run is None:
            return None  # the first model call starts the session, because its request has the tools
        messages = self._runs.commit_new_turns(run, state)
        plan = run.session.check_boundary()
        if plan is None:
            return build_end_update(run)
        return build_plan_update(run, messages, plan, (yield run.session, plan))

    def _resolve_response(self, request: Any) -> _sync_async.SharedBody[Any]:
        """Return the response for the agent. Yield requests to the model; receive its responses."""
        run = self._runs.get_or_start(request)
        self._runs.register_tools(run, request)
        response = yield remove_disabled_tools(run, request)
        guard_messages: list[HumanMessage] = []
        for _ in range(MAX_REJECTIONS):
            if parse_response(response, agent=self._runs.agent) is None:
                break
            build_request = partial(build_candidate_request, run, request, models=self._models)
            choice = yield from resolve_turn(run.session, response, self._build_step, build_request)
            if choice.plan is None:
                return prepend_messages(guard_messages, build_selected_response(choice))
            if not requests_new_response(choice.plan):
                return build_stop_response(run) or response
            guard_messages += build_guard_messages(run, choice.plan)
            messages = [*request.messages, *guard_messages]
            response = yield remove_disabled_tools(run, request.override(messages=messages))
        return prepend_messages(guard_messages, response)

    def _build_step(self, response: Any) -> Step:
        turn = parse_response(response, agent=self._runs.agent)
        if turn is None:
            raise RecoveryError("a candidate contains no response of the model")
        return turn

    def _handle_end(self, state: Any) -> _sync_async.SharedBody[dict[str, Any] | None]:
        """Handle the end of the run; yield and receive as `_handle_boundary`."""
        run = self._find_run(state)
        if run is None:
            return None
        messages = self._runs.commit_new_turns(run, state)
        plan = yield from end_session(run.session)
        if plan is None:
            return None
        update = build_plan_update(run, messages, plan, (yield run.session, plan))
        if run.session.stop_reason is not None:  # remove the rejected final output
            removal = [RemoveMessage(id=one.id) for one in messages[-1:] if one.id]
            return {"messages": [*removal, *update["messages"]]}
        return {"jump_to": "model", **update} if "jump_to" not in update else None

    def _find_run(self, state: Mapping[str, Any]) -> AgentRun | None:
        """Return the run, unless a guarded graph handles the boundaries and the end."""
        return None if get_current_run() is not None else self._runs.get(state)
