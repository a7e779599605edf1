"""Registry of the middleware's runs: start, look-up by state, and restoration in another process."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.utils.function_calling import convert_to_openai_tool

from agentguard._bounded_map import BoundedMap
from agentguard.integrations.langchain.messages import (
    build_step,
    drop_incomplete_turn,
    is_guard_message,
    split_turns,
)
from agentguard.integrations.langchain.run import AgentRun, get_current_run
from agentguard.integrations.langchain.state_updates import get_tool_name
from agentguard.recover.capabilities import MODEL_LOOP_CAPABILITIES
from agentguard.runtime.resumption import discard_unknown_steps, list_disabled_tools
from agentguard.runtime.session import Session
from agentguard.trajectory.model import ToolSpec, Trajectory

if TYPE_CHECKING:
    from agentguard.guard import Guard

_MAX_RUNS = 1024
"""Number of runs that one middleware keeps in memory; an older run is rebuilt from its messages."""


class AgentRunRegistry:
    """Thread-safe registry of one middleware's runs, by the run ID in the agent's state.

    Args:
        guard: the guard whose rules apply.
        agent: name of the agent in the trajectory.
        on_run: called with the session of each run when the run begins.
    """

    def __init__(self, guard: Guard, *, agent: str, on_run: Callable[[Session], None] | None) -> None:
        self._guard, self.agent, self._on_run = guard, agent, on_run
        self._runs = BoundedMap[str, AgentRun](_MAX_RUNS)
        self._lock = threading.Lock()

    def get(self, state: Mapping[str, Any]) -> AgentRun | None:
        """Return the run of a state, or of the guarded graph around it; None before the run begins."""
        return get_current_run() or self._runs.get(state.get("agentguard_run", ""))

    def get_or_start(self, request: Any) -> AgentRun:
        """Return the run of a model call; the first call starts or restores its session."""
        run = self.get(request.state)
        if run is None:
            run = self._start_or_get(request.state, request.tools, request.system_message)
            self.commit_new_turns(run, request.state)
            run.session.start_turn()  # no boundary precedes the first model call
        return run

    def register_tools(self, run: AgentRun, request: Any) -> None:
        """Add the new tools of a model request to the session, and those that produce structured output."""
        specs = [
            build_tool_spec(tool) for tool in request.tools if get_tool_name(tool) not in run.known_tools
        ]
        if request.response_format is not run.response_format:
            run.response_format = request.response_format
            specs += build_output_specs(run.response_format)
        if specs:
            run.known_tools |= {one.name for one in specs}
            run.session.add_tools(specs)

    def get_or_restore(self, state: Mapping[str, Any]) -> AgentRun | None:
        """Return the run of a tool call; restore it if another process began the turn."""
        run = self.get(state)
        if run is not None or self._guard.components.store is None or not state.get("agentguard_run"):
            return run
        run = self._start_or_get(state, (), None)
        self.commit_new_turns(run, {"messages": drop_incomplete_turn(state["messages"])})
        return run

    def commit_new_turns(self, run: AgentRun, state: Mapping[str, Any]) -> list[AnyMessage]:
        """Commit the turns that are not steps of the session yet; return all messages."""
        messages = list(state["messages"])
        for turn in run.branch.add_new_turns(messages, len(run.session)):
            run.session.commit(build_step(turn, agent=self.agent))
        return messages

    def _start_or_get(self, state: Mapping[str, Any], tools: Sequence[Any], system: Any) -> AgentRun:
        with self._lock:
            key = state.get("agentguard_run") or uuid.uuid4().hex[:12]
            if key in self._runs:
                return self._runs[key]
            run = self._runs[key] = self._create_run(key, state["messages"], tools, system)
        if self._on_run is not None:
            self._on_run(run.session)
        return run

    def _create_run(
        self, run_id: str, messages: Sequence[AnyMessage], tools: Sequence[Any], system: Any
    ) -> AgentRun:
        task_messages = [m for m in messages if isinstance(m, HumanMessage) and not is_guard_message(m)]
        meta = Trajectory(
            id=run_id,
            format="event_log",
            task=task_messages[-1].text if task_messages else "",
            steps=(),
            tools=tuple(build_tool_spec(tool) for tool in tools),
            system_prompts={self.agent: system.text} if system is not None else {},
        )
        # A run with responses before its first call in this process began in another one.
        run_messages = messages[messages.index(task_messages[-1]) :] if task_messages else ()
        has_begun = any(
            isinstance(message, AIMessage) or is_guard_message(message) for message in run_messages
        )
        resume = has_begun and self._guard.components.store is not None
        run = AgentRun(self._guard.session(meta, MODEL_LOOP_CAPABILITIES, resume=resume))
        run.disabled_tools = list_disabled_tools(run.session)
        if resume:
            known_steps = [
                build_step(turn, agent=self.agent) for turn in split_turns(drop_incomplete_turn(messages))
            ]
            discard_unknown_steps(run.session, known_steps)
        run.branch.align_to_session(messages, len(run.session))
        return run


def build_output_specs(response_format: Any) -> list[ToolSpec]:
    """Return the tools for structured output, if the model produces it by a tool call."""
    if response_format is None:
        return []
    strategy = (
        response_format
        if isinstance(response_format, ToolStrategy)
        else ToolStrategy(getattr(response_format, "schema", response_format))
    )
    return [ToolSpec(name=one.name, parameters=one.json_schema) for one in strategy.schema_specs]


def build_tool_spec(tool: Any) -> ToolSpec:
    """Return the specification of a tool, or of a provider's own tool."""
    try:
        function = convert_to_openai_tool(tool)["function"]
    except (KeyError, TypeError, ValueError):  # a provider's own tool has at most a name
        return ToolSpec(name=get_tool_name(tool))
    return ToolSpec(
        name=function["name"],
        description=function.get("description") or "",
        parameters=function.get("parameters") or {},
    )
