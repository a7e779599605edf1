"""One run of a pydantic-ai agent: what the guard knows of it, its messages in agreement with plans."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelRequestPart, ModelResponse, ToolReturnPart
from pydantic_ai.tools import ToolDefinition

from agentguard import _sync_async
from agentguard.errors import RunStopped
from agentguard.integrations.pydantic_ai.candidates import parts_with_result, with_result
from agentguard.integrations.pydantic_ai.messages import (
    MessagePosition,
    asked,
    request,
    step_of,
    steps_of,
    system_text,
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

Ask = Callable[[str], str | Awaitable[str]]


class PydanticGuardedRun:
    """The state of one run.

    Args:
        guard: whose rules hold.
        agent: its name in the trajectory.
        ask: called with a question when a person must decide.
        on_run: called with the session when it begins.
    """

    def __init__(
        self, guard: Guard, agent: str, *, ask: Ask | None, on_run: Callable[[Session], None] | None
    ) -> None:
        self.agent, self.withheld = agent, set[str]()
        self._guard, self._ask, self._on_run = guard, ask, on_run
        self._session: Session | None = None
        self._offered: dict[str, ToolDefinition] = {}
        self._places: dict[int, MessagePosition] = {}
        self._steps: list[Step] = []
        self._taken = 0

    @property
    def session(self) -> Session | None:
        """The guarded run; None before the model has answered for the first time."""
        return self._session

    def offer(self, tools: Sequence[ToolDefinition]) -> list[ToolDefinition]:
        """Take note of the tools, and leave out those that were taken away."""
        new = {tool.name: tool for tool in tools if tool.name not in self._offered}
        self._offered |= new
        if new and self._session is not None:
            self._session.add_tools(_spec(tool) for tool in new.values())
        return [tool for tool in tools if tool.name not in self.withheld]

    def begun(self, run_id: str | None, messages: Sequence[ModelMessage]) -> Session:
        """The session; made when it is first asked for, since only then the tools are known."""
        if self._session is None:
            system = system_text(messages)
            meta = Trajectory(
                id=run_id or f"run-{id(self):x}",
                format="event_log",
                task=asked(messages),
                steps=(),
                tools=tuple(_spec(tool) for tool in self._offered.values()),
                system_prompts={self.agent: system} if system else {},
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

    def take_in(self, session: Session, messages: Sequence[ModelMessage]) -> None:
        """Commit what the session has not seen; another capability may have shortened the history."""
        self._taken = min(self._taken, len(messages))
        for step in steps_of(messages[self._taken :], agent=self.agent):
            self._steps.append(session.commit(step))
        self._taken = len(messages)

    def answered(self, session: Session, messages: Sequence[ModelMessage]) -> None:
        """The model has answered: ``messages`` end in its response. Commit all that came before it."""
        self.take_in(session, messages[:-1])
        before = messages[-2] if len(messages) > 1 and isinstance(messages[-2], ModelRequest) else None
        history = messages[:-1] if before is None else messages[:-2]
        self.stand(session, history, before.parts if before is not None else ())

    def stand(
        self, session: Session, history: Sequence[ModelMessage], parts: Sequence[ModelRequestPart]
    ) -> None:
        """Keep where the run stands before its next turn, without what the guard says there."""
        self._places.setdefault(len(session), MessagePosition(tuple(history), tuple(parts)))

    async def choose(
        self,
        session: Session,
        response: ModelResponse,
        ask: Callable[[SampleVariant], Awaitable[ModelResponse]],
    ) -> ResolvedTurn:
        """Judge a turn whose tools have not run; ``ask`` asks for a candidate.

        Raises:
            RunStopped: that stops the run.
        """
        body = resolve_turn(session, response, lambda one: step_of(one, agent=self.agent), lambda one: one)
        choice = await _sync_async.run_async(body, ask)
        self.stop_if_stopped(session)
        return choice

    def ask_again(self, messages: list[ModelMessage], told: Sequence[str]) -> ModelRequest:
        """Take the last response out of the messages; returns the request to be made again."""
        messages.pop()
        parts: Sequence[ModelRequestPart] = ()
        if messages and isinstance(messages[-1], ModelRequest):
            parts = messages[-1].parts
            messages.pop()
        self._taken = len(messages) + 1
        return request(parts, told)

    async def apply(
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
                parts = self._repair(action, messages, parts)
            elif isinstance(action, Rewind | Restart):
                to_step = action.to_step if isinstance(action, Rewind) else 0
                parts = self._back(session, messages, to_step)
            elif isinstance(action, DisableTools):
                self.withheld |= set(action.tools)
        self._taken = len(messages) + 1  # the request is added to the history when it is made
        self.stop_if_stopped(session)
        told = await acollect_messages(plan, failed, ask_person=self._ask)
        return request(parts, told)

    async def told(self, plan: RecoveryPlan) -> list[str]:
        """What the agent is told by a plan about an answer, a person's answer among it."""
        return await acollect_messages(plan, ask_person=self._ask)

    @staticmethod
    def stop_if_stopped(session: Session) -> None:
        """Raise RunStopped with the reason if the guard has ended the run."""
        if session.stop_reason is not None:
            raise RunStopped(session.stop_reason)

    def _repair(
        self, repair: Repair, messages: list[ModelMessage], parts: Sequence[ModelRequestPart]
    ) -> list[ModelRequestPart]:
        """Put another text in place of what a call returned, wherever the run may go on from."""
        at = int(repair.field.partition("[")[2].rstrip("]"))
        call = self._steps[repair.step].observations[at].call_id
        messages[:] = with_result(messages, call, repair.text)
        self._places = {
            step: MessagePosition(
                tuple(with_result(place.history, call, repair.text)),
                tuple(parts_with_result(place.parts, call, repair.text)),
            )
            for step, place in self._places.items()
        }
        return parts_with_result(parts, call, repair.text)

    def _back(
        self, session: Session, messages: list[ModelMessage], to_step: int
    ) -> Sequence[ModelRequestPart]:
        """Put the history back to a place; returns the parts of the request that is made there.

        A run can be taken back to before a turn of the agent. Steps between ``to_step`` and that turn are
        prompts, of this run or of the history it began with: they stay, and are committed again.
        """
        at = min(step for step in self._places if step >= to_step)
        place = self._places[at]
        messages[:] = place.history
        again = self._steps[to_step:at]
        del self._steps[to_step:]
        self._places = {step: kept for step, kept in self._places.items() if step <= at}
        for step in again:
            self._steps.append(session.commit(step))
        return place.parts


def returned(tool: str, result: Any) -> str:
    """What a tool returned, as the text the model gets."""
    value = getattr(result, "return_value", result)
    return ToolReturnPart(tool_name=tool, content=value, tool_call_id="").model_response_str()


def _spec(tool: ToolDefinition) -> ToolSpec:
    return ToolSpec(
        name=tool.name, description=tool.description or "", parameters=tool.parameters_json_schema
    )
