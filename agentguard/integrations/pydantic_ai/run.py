"""Guarded run of a pydantic-ai agent: it commits messages to the session and applies plans to them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ToolReturn,
    ToolReturnPart,
)
from pydantic_ai.tools import ToolDefinition

from agentguard import _sync_async
from agentguard.errors import RunStopped
from agentguard.integrations.pydantic_ai.messages import (
    MessagePosition,
    build_request,
    build_step,
    build_steps,
    find_task,
    join_system_prompts,
    replace_result,
    replace_result_in_parts,
)
from agentguard.recover.actions import DisableTools, Repair, Restart, Rewind, SampleVariant
from agentguard.recover.capabilities import MODEL_LOOP_CAPABILITIES
from agentguard.recover.plan import RecoveryPlan
from agentguard.runtime.session import ResolvedTurn, Session, resolve_turn
from agentguard.runtime.tool_execution import AskCallback, acollect_messages, aundo_effects
from agentguard.trajectory.model import Step, ToolSpec, Trajectory

if TYPE_CHECKING:
    from agentguard.guard import Guard


class PydanticGuardedRun:
    """Guarded run of an agent.

    Args:
        guard: the guard whose rules apply.
        agent_name: name of the agent in the trajectory.
        ask: called with a question when a person must decide.
        on_run: called with the session when the run begins.

    Attributes:
        created_at: start of the run in seconds since 1970.
    """

    def __init__(
        self,
        guard: Guard,
        agent_name: str,
        *,
        ask: AskCallback | None,
        on_run: Callable[[Session], None] | None,
    ) -> None:
        self.agent_name, self.disabled_tools = agent_name, set[str]()
        self._guard, self._ask, self._on_run = guard, ask, on_run
        self._session: Session | None = None
        self._known_tools: dict[str, ToolDefinition] = {}
        self._positions: dict[int, MessagePosition] = {}
        self._steps: list[Step] = []
        self._committed_count = 0
        self.created_at = time.time()

    @property
    def session(self) -> Session | None:
        """Return the session; None before the model's first response."""
        return self._session

    def register_tools(self, tools: Sequence[ToolDefinition]) -> list[ToolDefinition]:
        """Register the tools; return those that are not disabled."""
        new = {tool.name: tool for tool in tools if tool.name not in self._known_tools}
        self._known_tools |= new
        if new and self._session is not None:
            self._session.add_tools(_build_tool_spec(tool) for tool in new.values())
        return [tool for tool in tools if tool.name not in self.disabled_tools]

    def get_or_start_session(self, run_id: str | None, messages: Sequence[ModelMessage]) -> Session:
        """Return the session; the first call starts it, because the tools are known only then."""
        if self._session is None:
            system = join_system_prompts(messages)
            meta = Trajectory(
                id=run_id or f"run-{id(self):x}",
                format="event_log",
                task=find_task(messages),
                steps=(),
                tools=tuple(_build_tool_spec(tool) for tool in self._known_tools.values()),
                system_prompts={self.agent_name: system} if system else {},
            )
            capabilities = replace(MODEL_LOOP_CAPABILITIES, escalate=self._ask is not None)
            self._session = self._guard.session(meta, capabilities)
            if self._on_run is not None:
                self._on_run(self._session)
        return self._session

    def commit_new_messages(self, session: Session, messages: Sequence[ModelMessage]) -> None:
        """Commit the new messages; another capability may have shortened the history."""
        self._committed_count = min(self._committed_count, len(messages))
        for step in build_steps(messages[self._committed_count :], agent=self.agent_name):
            self._steps.append(session.commit(step))
        self._committed_count = len(messages)

    def commit_before_response(self, session: Session, messages: Sequence[ModelMessage]) -> None:
        """Commit the messages before the model's response, which is the last of ``messages``."""
        self.commit_new_messages(session, messages[:-1])
        before = messages[-2] if len(messages) > 1 and isinstance(messages[-2], ModelRequest) else None
        history = messages[:-1] if before is None else messages[:-2]
        self.save_position(session, history, before.parts if before is not None else ())

    def save_position(
        self, session: Session, history: Sequence[ModelMessage], parts: Sequence[ModelRequestPart]
    ) -> None:
        """Save the position of the run before its next turn, without the guard's texts."""
        self._positions.setdefault(len(session), MessagePosition(tuple(history), tuple(parts)))

    async def resolve_turn(
        self,
        session: Session,
        response: ModelResponse,
        request_candidate: Callable[[SampleVariant], Awaitable[ModelResponse]],
    ) -> ResolvedTurn:
        """Judge a response before its tools run; ``request_candidate`` requests another candidate.

        Raises:
            RunStopped: the guard stops the run.
        """
        body = resolve_turn(
            session, response, lambda one: build_step(one, agent=self.agent_name), lambda one: one
        )
        choice = await _sync_async.run_async(body, request_candidate)
        self.raise_if_stopped(session)
        return choice

    def build_retry_request(self, messages: list[ModelMessage], guard_texts: Sequence[str]) -> ModelRequest:
        """Remove the last response from the messages; return its request with the guard's texts."""
        messages.pop()
        parts: Sequence[ModelRequestPart] = ()
        if messages and isinstance(messages[-1], ModelRequest):
            parts = messages[-1].parts
            messages.pop()
        self._committed_count = len(messages) + 1
        return build_request(parts, guard_texts)

    async def apply_plan(
        self,
        session: Session,
        plan: RecoveryPlan,
        messages: list[ModelMessage],
        parts: Sequence[ModelRequestPart],
    ) -> ModelRequest:
        """Apply a plan that the session has executed to the messages.

        Args:
            session: session of the run.
            plan: the executed plan.
            messages: history of the run; the method changes it in place.
            parts: parts of the next request without the plan.

        Returns:
            The next request.

        Raises:
            RunStopped: the plan stops the run.
        """
        failed = await aundo_effects(session, plan)
        for action in plan.actions:
            if isinstance(action, Repair):
                parts = self._apply_repair(action, messages, parts)
            elif isinstance(action, Rewind | Restart):
                to_step = action.to_step if isinstance(action, Rewind) else 0
                parts = self._roll_back(session, messages, to_step)
            elif isinstance(action, DisableTools):
                self.disabled_tools |= set(action.tools)
        self._committed_count = len(messages) + 1  # pydantic-ai adds the request to the history
        self.raise_if_stopped(session)
        texts = await acollect_messages(session, plan, failed, ask_person=self._ask)
        return build_request(parts, texts)

    async def build_guard_texts(self, session: Session, plan: RecoveryPlan) -> list[str]:
        """Return the guard's texts of a plan that rejects a response, including a person's answer."""
        return await acollect_messages(session, plan, ask_person=self._ask)

    @staticmethod
    def raise_if_stopped(session: Session) -> None:
        """Raise RunStopped with the reason if the guard has ended the run."""
        if session.stop_reason is not None:
            raise RunStopped(session.stop_reason)

    def _apply_repair(
        self, repair: Repair, messages: list[ModelMessage], parts: Sequence[ModelRequestPart]
    ) -> list[ModelRequestPart]:
        """Replace the text of a tool result in the messages and in all saved positions."""
        call = self._steps[repair.step].observations[repair.index].call_id
        messages[:] = replace_result(messages, call, repair.text)
        self._positions = {
            step: MessagePosition(
                tuple(replace_result(place.history, call, repair.text)),
                tuple(replace_result_in_parts(place.parts, call, repair.text)),
            )
            for step, place in self._positions.items()
        }
        return replace_result_in_parts(parts, call, repair.text)

    def _roll_back(
        self, session: Session, messages: list[ModelMessage], to_step: int
    ) -> Sequence[ModelRequestPart]:
        """Restore the history at a position; return the parts of the next request.

        A rollback ends before a turn of the agent. The steps between ``to_step`` and that turn are prompts,
        of this run or of its initial history. They stay, and the method commits them again.
        """
        turn_step = min(step for step in self._positions if step >= to_step)
        position = self._positions[turn_step]
        messages[:] = position.history
        prompt_steps = self._steps[to_step:turn_step]
        del self._steps[to_step:]
        self._positions = {step: one for step, one in self._positions.items() if step <= turn_step}
        for step in prompt_steps:
            self._steps.append(session.commit(step))
        return position.parts


def format_tool_result(tool_name: str, result: Any) -> str:
    """Return a tool's return value as the text that the model gets."""
    value = result.return_value if isinstance(result, ToolReturn) else result
    return ToolReturnPart(tool_name=tool_name, content=value, tool_call_id="").model_response_str()


def _build_tool_spec(tool: ToolDefinition) -> ToolSpec:
    return ToolSpec(
        name=tool.name, description=tool.description or "", parameters=tool.parameters_json_schema
    )
