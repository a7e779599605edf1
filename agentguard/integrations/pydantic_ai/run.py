"""One run of a pydantic-ai agent: what the guard knows of it, its messages in agreement with plans."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelRequestPart, ModelResponse, ToolReturnPart
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
from agentguard.recover.strategy import (
    Capabilities,
    DisableTools,
    RecoveryPlan,
    Repair,
    Restart,
    Rewind,
    SampleVariant,
)
from agentguard.runtime.session import Session
from agentguard.runtime.tool_execution import acollect_messages, aundo_effects
from agentguard.runtime.turn_resolution import ResolvedTurn, resolve_turn
from agentguard.trajectory.model import Step, ToolSpec, Trajectory

if TYPE_CHECKING:
    from agentguard.guard import Guard

AskCallback = Callable[[str], str | Awaitable[str]]


class PydanticGuardedRun:
    """The state of one run.

    Args:
        guard: whose rules hold.
        agent: its name in the trajectory.
        ask: called with a question when a person must decide.
        on_run: called with the session when it begins.
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

    @property
    def session(self) -> Session | None:
        """The guarded run; None before the model has answered for the first time."""
        return self._session

    def register_tools(self, tools: Sequence[ToolDefinition]) -> list[ToolDefinition]:
        """Take note of the tools, and leave out those that were taken away."""
        new = {tool.name: tool for tool in tools if tool.name not in self._known_tools}
        self._known_tools |= new
        if new and self._session is not None:
            self._session.add_tools(_build_tool_spec(tool) for tool in new.values())
        return [tool for tool in tools if tool.name not in self.disabled_tools]

    def get_or_start_session(self, run_id: str | None, messages: Sequence[ModelMessage]) -> Session:
        """The session; made when it is first asked for, since only then the tools are known."""
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
            can = Capabilities(
                reject=True,
                truncate=True,
                compensate=True,
                disable_tools=True,
                restart=True,
                repair=True,
                sample=True,
                escalate=self._ask is not None,
            )
            self._session = self._guard.session(meta, can)
            if self._on_run is not None:
                self._on_run(self._session)
        return self._session

    def commit_new_messages(self, session: Session, messages: Sequence[ModelMessage]) -> None:
        """Commit what the session has not seen; another capability may have shortened the history."""
        self._committed_count = min(self._committed_count, len(messages))
        for step in build_steps(messages[self._committed_count :], agent=self.agent_name):
            self._steps.append(session.commit(step))
        self._committed_count = len(messages)

    def commit_before_response(self, session: Session, messages: Sequence[ModelMessage]) -> None:
        """The model has answered: ``messages`` end in its response. Commit all that came before it."""
        self.commit_new_messages(session, messages[:-1])
        before = messages[-2] if len(messages) > 1 and isinstance(messages[-2], ModelRequest) else None
        history = messages[:-1] if before is None else messages[:-2]
        self.save_position(session, history, before.parts if before is not None else ())

    def save_position(
        self, session: Session, history: Sequence[ModelMessage], parts: Sequence[ModelRequestPart]
    ) -> None:
        """Keep where the run stands before its next turn, without what the guard says there."""
        self._positions.setdefault(len(session), MessagePosition(tuple(history), tuple(parts)))

    async def resolve_turn(
        self,
        session: Session,
        response: ModelResponse,
        request_candidate: Callable[[SampleVariant], Awaitable[ModelResponse]],
    ) -> ResolvedTurn:
        """Judge a turn whose tools have not run; ``ask`` asks for a candidate.

        Raises:
            RunStopped: that stops the run.
        """
        body = resolve_turn(
            session, response, lambda one: build_step(one, agent=self.agent_name), lambda one: one
        )
        choice = await _sync_async.run_async(body, request_candidate)
        self.raise_if_stopped(session)
        return choice

    def build_retry_request(self, messages: list[ModelMessage], guard_texts: Sequence[str]) -> ModelRequest:
        """Take the last response out of the messages; returns the request to be made again."""
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
        """Make the messages agree with a plan that the session has carried out.

        Args:
            session: of this run.
            plan: what it has carried out.
            messages: the run's history, changed in place.
            parts: of the request that would be made next.

        Returns:
            The request to be made next instead.

        Raises:
            RunStopped: the plan was to stop.
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
        self._committed_count = len(messages) + 1  # the request is added to the history when it is made
        self.raise_if_stopped(session)
        told = await acollect_messages(plan, failed, ask_person=self._ask)
        return build_request(parts, told)

    async def build_guard_texts(self, plan: RecoveryPlan) -> list[str]:
        """What the agent is told by a plan about an answer, a person's answer among it."""
        return await acollect_messages(plan, ask_person=self._ask)

    @staticmethod
    def raise_if_stopped(session: Session) -> None:
        """Raise RunStopped with the reason if the guard has ended the run."""
        if session.stop_reason is not None:
            raise RunStopped(session.stop_reason)

    def _apply_repair(
        self, repair: Repair, messages: list[ModelMessage], parts: Sequence[ModelRequestPart]
    ) -> list[ModelRequestPart]:
        """Put another text in place of what a call returned, wherever the run may go on from."""
        at = int(repair.field.partition("[")[2].rstrip("]"))
        call = self._steps[repair.step].observations[at].call_id
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
        """Put the history back to a place; returns the parts of the request that is made there.

        A run can be taken back to before a turn of the agent. Steps between ``to_step`` and that turn are
        prompts, of this run or of the history it began with: they stay, and are committed again.
        """
        at = min(step for step in self._positions if step >= to_step)
        place = self._positions[at]
        messages[:] = place.history
        again = self._steps[to_step:at]
        del self._steps[to_step:]
        self._positions = {step: kept for step, kept in self._positions.items() if step <= at}
        for step in again:
            self._steps.append(session.commit(step))
        return place.parts


def format_tool_result(tool_name: str, result: Any) -> str:
    """What a tool returned, as the text the model gets."""
    value = getattr(result, "return_value", result)
    return ToolReturnPart(tool_name=tool_name, content=value, tool_call_id="").model_response_str()


def _build_tool_spec(tool: ToolDefinition) -> ToolSpec:
    return ToolSpec(
        name=tool.name, description=tool.description or "", parameters=tool.parameters_json_schema
    )
