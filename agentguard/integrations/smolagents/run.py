"""Guarded run of a smolagents agent: it commits the steps of the memory and applies plans to them."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from smolagents import TokenUsage
from smolagents.memory import ActionStep, FinalAnswerStep, MemoryStep, PlanningStep
from smolagents.models import ChatMessage

from agentguard import _sync_async
from agentguard.detect.step_facts import canonicalize_json
from agentguard.errors import AgentGuardError, RunStopped
from agentguard.integrations.smolagents.steps import (
    GuardStep,
    ParseTurn,
    add_result,
    apply_repaired_turn,
    build_step,
    build_user_message,
    to_text,
)
from agentguard.recover.actions import DisableTools, Repair, Restart, Rewind, SampleVariant
from agentguard.recover.capabilities import MODEL_LOOP_CAPABILITIES
from agentguard.recover.effect_ledger import EffectClaim
from agentguard.recover.plan import RecoveryPlan
from agentguard.runtime.session import MAX_REJECTIONS, Session, resolve_turn
from agentguard.runtime.tool_execution import collect_messages, run_tool, undo_effects
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec, Trajectory

if TYPE_CHECKING:
    from agentguard.guard import Guard

RequestMessage = Callable[[Sequence[ChatMessage], SampleVariant], ChatMessage]
"""Function that requests a message of the model for a turn, or for a candidate of it."""


class AnswerRefused(AgentGuardError):
    """Error of a refused final answer; smolagents adds its text to the messages of the model."""

    code = "answer_refused"


class TurnClaims:
    """Claims of the calls of one turn in the ledger, and their results; thread-safe.

    Args:
        session: session of the run.
        calls: calls of tools that use the ledger.
    """

    def __init__(self, session: Session, calls: Sequence[ToolCall] = ()) -> None:
        self._session, self._lock = session, threading.Lock()
        self._open = [(call, session.begin_tool(call.name, call.arguments or {})) for call in calls]
        self.results: dict[str, Observation] = {}

    def call_tool(self, name: str, arguments: Mapping[str, Any], function: Callable[[], Any]) -> Any:
        """Call a tool so that each effect happens once; the exceptions are those of `run_tool`."""
        call, claim = self._take(name, arguments)
        try:
            result = run_tool(self._session, claim, function)
        except Exception as error:  # a tool may raise anything; smolagents reports it to the model
            self._record(call, f"Error: {type(error).__name__}: {error}", is_error=True)
            raise
        self._record(call, to_text(result).strip())
        return result

    def close(self) -> None:
        """Release the claims of the calls that smolagents has not executed."""
        for _, claim in self._open:
            self._session.end_tool(claim, "", is_refused=True)
        self._open = []

    def _take(self, name: str, arguments: Mapping[str, Any]) -> tuple[ToolCall | None, EffectClaim]:
        """Return the claim of a call.

        A call from code, or one whose arguments smolagents has replaced, has no claim yet: claim it now.
        """
        arguments_key = canonicalize_json(arguments)
        with self._lock:
            for place, (call, claim) in enumerate(self._open):
                if call.name == name and canonicalize_json(call.arguments) == arguments_key:
                    del self._open[place]
                    return call, claim
            return None, self._session.begin_tool(name, arguments)

    def _record(self, call: ToolCall | None, text: str, *, is_error: bool | None = None) -> None:
        if call is not None and call.id is not None:
            result = Observation(content=text, call_id=call.id, tool=call.name, is_error=is_error)
            with self._lock:
                self.results[call.id] = result


class SmolagentsRun:
    """Guarded run of an agent, from a task to its final answer.

    Args:
        guard: the guard whose rules apply.
        agent: the guarded agent, whose memory has the task.
        parse_turn: converts a message of the model to a step.
        tools: names of the tools that use the ledger.
        specs: all tools that the model may call.
        can_repair: whether the calls of a message can be changed.
        ask: called with a question when a person must decide.
    """

    def __init__(
        self,
        guard: Guard,
        agent: Any,
        parse_turn: ParseTurn,
        *,
        tools: frozenset[str],
        specs: Sequence[ToolSpec],
        can_repair: bool,
        ask: Callable[[str], str] | None,
    ) -> None:
        self._agent, self._parse_turn, self._tools, self._ask = agent, parse_turn, tools, ask
        self._name = agent.name or "agent"
        system = agent.memory.system_prompt.system_prompt
        meta = Trajectory(
            id=f"run-{uuid.uuid4().hex[:12]}",
            format="event_log",
            task=agent.task or "",
            steps=(),
            tools=tuple(specs),
            system_prompts={self._name: system} if system else {},
        )
        capabilities = replace(MODEL_LOOP_CAPABILITIES, repair=can_repair, escalate=ask is not None)
        self.session = guard.session(meta, capabilities)
        self.disabled_tools: set[str] = set()
        self._steps: list[Step] = []
        self._positions: list[int] = []
        self._turn: Step | None = None
        self._claims = TurnClaims(self.session)
        self._end_plan: RecoveryPlan | None = None
        self._has_answer = False
        for place, memory_step in enumerate(agent.memory.steps):
            if (step := build_step(memory_step, parse_turn)) is not None:
                self._commit(step, place)
        self._fixed_step_count = len(self._steps)
        self.session.has_earlier_turns = any(step.source is Source.AGENT for step in self._steps)

    def request_turn(self, messages: list[ChatMessage], request: RequestMessage) -> ChatMessage:
        """Return the accepted message of a turn; its usage is the sum over all requests.

        Args:
            messages: messages of the request; a recovery changes them in place with the memory.
            request: requests a message.

        Raises:
            RunStopped: the guard stops the run.
        """
        usages: list[Any] = []

        def request_counted(variant: SampleVariant) -> ChatMessage:
            instruction = [build_user_message(variant.instruction)] if variant.instruction else []
            message = request([*messages, *instruction], variant)
            usages.append(message.token_usage)
            return message

        for retries_left in reversed(range(MAX_REJECTIONS + 1)):
            self._apply_due_plans(messages)
            message = request_counted(SampleVariant())
            body = resolve_turn(
                self.session, message, self._parse_turn, lambda variant: partial(request_counted, variant)
            )
            choice = _sync_async.run_sync(body, _sync_async.call)
            self.raise_if_stopped()
            if choice.plan is None or not retries_left:
                break
            self._apply_plan(choice.plan, messages)
        message, self._turn = choice.response, choice.turn
        if choice.is_repaired:
            message = apply_repaired_turn(message, choice.turn)
        self._claims = TurnClaims(
            self.session, [call for call in choice.turn.tool_calls if call.name in self._tools]
        )
        return _add_usage(message, usages)

    def call_tool(self, name: str, arguments: Mapping[str, Any], function: Callable[[], Any]) -> Any:
        """Call a tool through the ledger.

        Raises:
            ValueError: the guard has disabled the tool.
        """
        if name in self.disabled_tools:
            raise ValueError(f"the guard has disabled the tool {name!r}; use another tool")
        return self._claims.call_tool(name, arguments, function)

    def check_answer(self, answer: Any) -> None:
        """Commit the last turn as a message with the answer, and end the session.

        The code of a ``CodeAgent`` becomes the reasoning of the message, because the answer is its result.

        Raises:
            AnswerRefused: the guard refuses the answer.
        """
        turn = self._turn or Step(index=0, source=Source.AGENT, agent=self._name)
        reasoning = turn.content if turn.tool_calls else turn.reasoning
        message = replace(turn, content=to_text(answer), reasoning=reasoning, tool_calls=())
        self._commit(message, len(self._agent.memory.steps))
        self._has_answer = True
        self._end_plan = self.session.end()
        if self._end_plan is not None:
            raise AnswerRefused("the guard refuses this answer")

    def observe(self, memory_step: MemoryStep) -> None:
        """Commit a step before smolagents adds it to the memory.

        Raises:
            RunStopped: the guard stops the run.
        """
        if isinstance(memory_step, FinalAnswerStep):
            if not self.session.has_ended:  # smolagents forces an answer at the limit of steps
                self.session.end(is_refusable=False)
            return
        if isinstance(memory_step, ActionStep | PlanningStep) and not self._has_answer:
            self._commit_memory_step(memory_step)
        if isinstance(memory_step, ActionStep):
            self._claims.close()
            self._turn, self._has_answer = None, False
        self.raise_if_stopped()

    def raise_if_stopped(self) -> None:
        """Raise RunStopped with the reason if the guard has ended the run."""
        if self.session.stop_reason is not None:
            raise RunStopped(self.session.stop_reason)

    def _commit_memory_step(self, memory_step: MemoryStep) -> None:
        place = len(self._agent.memory.steps)
        if isinstance(memory_step, ActionStep) and self._turn is not None:
            self._commit(add_result(self._turn, memory_step, self._claims.results), place)
        elif (step := build_step(memory_step, self._parse_turn)) is not None:
            self._commit(step, place)

    def _commit(self, step: Step, place: int) -> None:
        if step.source is Source.AGENT:
            model = getattr(self._agent.model, "model_id", None)
            step = replace(step, agent=self._name, model=model if isinstance(model, str) else None)
        self._steps.append(self.session.commit(step))
        self._positions.append(place)

    def _apply_due_plans(self, messages: list[ChatMessage]) -> None:
        plan, self._end_plan = self._end_plan, None
        if plan is not None:
            self._apply_plan(plan, messages)
        plan = self.session.check_boundary()
        if plan is not None:
            self._apply_plan(plan, messages)
        self.raise_if_stopped()

    def _apply_plan(self, plan: RecoveryPlan, messages: list[ChatMessage]) -> None:
        """Apply a plan that the session has executed to the memory, and rebuild the messages from it."""
        failed = undo_effects(self.session, plan)
        memory = self._agent.memory
        for action in plan.actions:
            if isinstance(action, Repair) and action.step < len(self._steps):
                self._replace_result(action)
            elif isinstance(action, Rewind):
                self._roll_back(action.to_step)
            elif isinstance(action, Restart):
                self._roll_back(0)
            elif isinstance(action, DisableTools):
                self.disabled_tools |= set(action.tools)
        self.raise_if_stopped()
        texts = collect_messages(self.session, plan, failed, ask_person=self._ask)
        memory.steps += [GuardStep(text) for text in texts]
        messages[:] = self._agent.write_memory_to_messages()

    def _roll_back(self, to_step: int) -> None:
        """Remove the steps from ``to_step`` on; the task and the steps before it stay."""
        step_count = max(to_step, self._fixed_step_count)
        steps = self._agent.memory.steps
        if step_count < len(self._steps):
            del steps[self._positions[step_count] :]
        while steps and isinstance(steps[-1], GuardStep):
            steps.pop()
        span = slice(to_step, step_count)
        fixed_steps = list(zip(self._steps[span], self._positions[span], strict=True))
        del self._steps[to_step:], self._positions[to_step:]
        for step, place in fixed_steps:
            self._commit(step, place)

    def _replace_result(self, repair: Repair) -> None:
        """Replace the text of a tool result in the memory."""
        step = self._steps[repair.step]
        observations = tuple(
            replace(one, content=repair.text) if index == repair.index else one
            for index, one in enumerate(step.observations)
        )
        self._steps[repair.step] = replace(step, observations=observations)
        memory_step = self._agent.memory.steps[self._positions[repair.step]]
        memory_step.observations = "\n".join(one.content for one in observations)


def _add_usage(message: ChatMessage, usages: Sequence[Any]) -> ChatMessage:
    """Return the message with the usage of all requests."""
    if len(usages) > 1 and all(usage is not None for usage in usages):
        message.token_usage = TokenUsage(
            input_tokens=sum(usage.input_tokens for usage in usages),
            output_tokens=sum(usage.output_tokens for usage in usages),
        )
    return message
