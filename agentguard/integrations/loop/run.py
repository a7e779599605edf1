"""Guarded run of a custom agent loop.

::

    with guard.run(task, tools=[book, find]) as run:
        while not run.done:
            run.tools(run.model(call_llm))

``call_llm(messages)`` or ``call_llm(messages, tools)`` receives messages, and the definitions of the enabled
tools, in the format of the chat API. It returns an assistant message, a completion or plain text. An
asynchronous loop uses ``await run.amodel(...)`` and ``await run.atools(...)``.
"""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from agentguard import _sync_async
from agentguard.errors import ConfigError, RunStopped
from agentguard.integrations.loop.snapshots import EnvironmentSnapshots
from agentguard.integrations.loop.tools import ToolFunctions, aexecute_calls, execute_calls
from agentguard.intercept.chat_branch import (
    ChatBranch,
    Message,
    apply_repaired_turn,
    build_assistant_message,
    build_messages,
    build_step,
    build_tool_message,
)
from agentguard.recover.actions import (
    DisableTools,
    Escalate,
    Repair,
    Restart,
    Rewind,
    SampleVariant,
    SendMessage,
)
from agentguard.recover.agent_messages import format_failed_undo
from agentguard.recover.capabilities import MODEL_LOOP_CAPABILITIES
from agentguard.recover.effect_store import Effect, EffectStore
from agentguard.recover.plan import Recovery, RecoveryPlan
from agentguard.recover.snapshots.manager import SnapshotOptions
from agentguard.runtime.resumption import get_restart_note, list_disabled_tools
from agentguard.runtime.session import MAX_REJECTIONS, ResolvedTurn, end_session, resolve_turn
from agentguard.runtime.tool_execution import aundo_effects, undo_effects
from agentguard.trajectory.event_log.recorder import RunRecorder
from agentguard.trajectory.model import Observation, Source, Step, Trajectory

if TYPE_CHECKING:
    from agentguard.guard import Guard


ModelFunction = Callable[..., Any]
"""Function that calls a model; see the docstring of this module."""


class ModelFunctions:
    """Further models of a loop, by name.

    Args:
        functions: the functions.
        required_names: names that the policy uses.

    Raises:
        ConfigError: a required name is missing.
    """

    def __init__(self, functions: Mapping[str, ModelFunction] | None, required_names: frozenset[str]) -> None:
        self._functions = dict(functions or {})
        if missing := required_names - set(self._functions):
            names = ", ".join(sorted(missing))
            raise ConfigError(
                f"run: the policy uses the models {names}: add them to models={{name: function}}"
            )

    def build_request(
        self,
        function: ModelFunction,
        messages: Sequence[Message],
        tools: Sequence[Any],
        variant: SampleVariant | None = None,
    ) -> Callable[[], Any]:
        """Build the function that requests a turn or a candidate of it.

        Args:
            function: the agent's own model.
            messages: messages for the model.
            tools: definitions of the enabled tools, for a function with two parameters.
            variant: variation of the request for a candidate. The function gets its temperature if it has a
                parameter ``temperature``.
        """
        variant = variant or SampleVariant()
        model_function = self._functions[variant.model] if variant.model else function
        parameters = _list_parameters(model_function)
        instruction = [{"role": "user", "content": variant.instruction}] if variant.instruction else []
        args: list[Any] = [[*messages, *instruction]]
        if len([name for name in parameters if name != "temperature"]) > 1:
            args.append(tools)
        if variant.temperature is None or "temperature" not in parameters:
            return partial(model_function, *args)
        return partial(model_function, *args, temperature=variant.temperature)


def parse_response(response: Any) -> Step:
    """Convert the return value of a model function to a step without tool results."""
    return build_step(build_assistant_message(response))


def _list_parameters(function: ModelFunction) -> list[str]:
    """Return the names of a function's parameters; ``messages`` if the function has no signature."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ["messages"]


class LoopRun:
    """Guarded run of a loop; a context manager.

    Args:
        guard: the guard of the run; set by `Guard.run`.
        task: the agent's task: the first user message.
        tools: functions that execute calls, as a sequence or by name; `Guard.tool` declares their effects.
        system: the system prompt.
        id: ID of the run; random by default.
        ask: called with a question when a person must decide; the agent gets the answer.
        save, restore: functions that return and restore the state of the environment that the tools act on.
            With both, a rollback can restore a saved state, not only truncate the messages.
        snapshots: frequency and format of the snapshots; the default is JSON, at most 32 MiB, at intervals
            chosen by cost.
        models: further models by name, for alternates and votes; each is a function as for `model`.
        effect_store: store of the effects; in memory by default.
        recorder: recorder of the steps; in memory by default.
        resume: resume the run with this ``id`` if the guard's store has it. The run continues after its last
            complete turn or, with ``restore``, from the latest saved state of the environment.
        tags: labels of the run in the store.

    Attributes:
        session: the session: findings, recoveries, the recorded trajectory.
        done: whether the run has ended, because the guard accepted its end or stopped it.
        answer: the agent's last text; empty if the guard stopped the run at a rejected answer.

    Raises:
        ConfigError: the arguments contradict each other or the policy.
    """

    def __init__(
        self,
        guard: Guard,
        task: str,
        *,
        tools: Sequence[Callable[..., Any]] | Mapping[str, Callable[..., Any]] = (),
        system: str = "",
        id: str | None = None,
        ask: Callable[[str], str] | None = None,
        save: Callable[[], Any] | None = None,
        restore: Callable[[Any], None] | None = None,
        snapshots: SnapshotOptions | None = None,
        models: Mapping[str, Callable[..., Any]] | None = None,
        effect_store: EffectStore | None = None,
        recorder: RunRecorder | None = None,
        resume: bool = False,
        tags: Sequence[str] = (),
    ) -> None:
        self._tool_functions = ToolFunctions(tools)
        self._task, self._system, self._ask = task, system, ask
        meta = Trajectory(
            id=id or f"run-{uuid.uuid4().hex[:12]}",
            format="event_log",
            task=task,
            steps=(),
            tools=self._tool_functions.specs,
            system_prompts={"": system} if system else {},
            extra={"tags": list(tags)} if tags else {},
        )
        capabilities = replace(MODEL_LOOP_CAPABILITIES, fork=save is not None, escalate=ask is not None)
        self.session = guard.session(
            meta, capabilities, effect_store=effect_store, recorder=recorder, resume=resume
        )
        self._model_functions = ModelFunctions(models, self.session.config.planner.models)
        self.branch = ChatBranch()
        self.done, self.answer = False, ""
        store = guard.components.store
        self._snapshots = EnvironmentSnapshots(self.session, save, restore, options=snapshots, store=store)
        self._disabled_tools = list_disabled_tools(self.session)
        self._resume()

    @property
    def messages(self) -> list[Message]:
        """Return the messages for the next model call."""
        return self.branch.messages

    @property
    def offered(self) -> list[dict[str, Any]]:
        """Return the definitions of the enabled tools in the format of the chat API."""
        return self._tool_functions.build_definitions(self._disabled_tools)

    @property
    def trajectory(self) -> Trajectory:
        """Return the current trajectory of the run."""
        return self.session.run

    @property
    def recoveries(self) -> tuple[Recovery, ...]:
        """Return the recoveries so far."""
        return tuple(self.session.recoveries)

    def model(self, call: Callable[..., Any]) -> Step | None:
        """Call the model for the next turn; repeat the call while the guard rejects the response.

        Returns:
            The turn, which is the argument of `tools`; None if the guard stopped the run.
        """
        return _sync_async.run_sync(self._request_turn(call, undo_effects), _sync_async.call)

    async def amodel(self, call: Callable[..., Awaitable[Any]]) -> Step | None:
        """Call an awaitable model like `model`."""
        return await _sync_async.run_async(self._request_turn(call, aundo_effects), _sync_async.call)

    def tools(self, turn: Step | None) -> None:
        """Execute the calls of a turn, each effect once; a turn without calls ends the run if accepted.

        An exception of a tool becomes an observation with ``is_error`` for the agent.
        """
        if turn is not None and not self.done:
            _sync_async.run_sync(self._execute_turn(turn, execute_calls, undo_effects), _sync_async.call)

    async def atools(self, turn: Step | None) -> None:
        """Execute the calls of a turn concurrently, otherwise like `tools`; tools may be coroutines."""
        if turn is not None and not self.done:
            await _sync_async.run_async(
                self._execute_turn(turn, aexecute_calls, aundo_effects), _sync_async.call
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.session.end()  # without effect if the run has already ended
            self._snapshots.close()
            self.done = True

    def raise_if_stopped(self) -> None:
        """Raise RunStopped with the reason if the guard ended the run."""
        if self.session.stop_reason is not None:
            raise RunStopped(self.session.stop_reason)

    def _add_task(self, note: str) -> None:
        """Add the task; before the first step, also the system prompt."""
        if self._system and not len(self.session):
            self._add_message({"role": "system", "content": self._system})
        self._add_message({"role": "user", "content": f"{self._task}\n\n{note}" if note else self._task})

    def _resume(self) -> None:
        """Rebuild the conversation from the stored steps; without steps, start it with the task."""
        if len(self.session) and not self.session.has_ended:
            self._snapshots.resume()
        steps = self.session.run.steps
        for step in steps:
            for text in step.extra.get("agentguard", {}).get("told", ()):
                self.branch.add_guard_message(text)
            self.branch.add_step(*build_messages(step))
            self.answer = step.content if step.source is Source.AGENT and step.content else self.answer
        if not any(step.source is Source.USER for step in steps):
            self._add_task(get_restart_note(self.session))
        for text in self.session.pending_messages:
            self.branch.add_guard_message(text)
        self.done = self.session.has_ended or self.session.stop_reason is not None

    def _add_message(self, message: Message) -> None:
        self.branch.add_step(message)
        self.session.commit(build_step(message))

    def _build_request(
        self, function: Callable[..., Any], variant: SampleVariant | None = None
    ) -> Callable[[], Any]:
        return self._model_functions.build_request(function, self.messages, self.offered, variant)

    def _request_turn(
        self, function: Callable[..., Any], undo: Callable[..., Any]
    ) -> _sync_async.SharedBody[Step | None]:
        """Request the next turn; yield functions for the caller to call or to await."""
        for _ in range(MAX_REJECTIONS):
            plan = self.session.check_boundary()
            if plan is not None:
                self._apply_plan(plan, (yield partial(undo, self.session, plan)))
            if self.done:
                return None
            self._snapshots.save_if_due()
            response = yield self._build_request(function)
            choice = yield from resolve_turn(
                self.session, response, parse_response, partial(self._build_request, function)
            )
            if self._accept_choice(choice):
                break
        return self._turn

    def _execute_turn(
        self, turn: Step, execute_calls: Callable[..., Any], undo: Callable[..., Any]
    ) -> _sync_async.SharedBody[None]:
        """Execute a turn; end the run after a turn without calls. Yield functions like `_request_turn`."""
        observations = yield partial(execute_calls, self.session, self._tool_functions, turn.tool_calls)
        self._commit_turn(turn, observations)
        if not turn.tool_calls:
            plan = yield from end_session(self.session)
            if plan is not None:
                if self.session.stop_reason is not None:
                    self.answer = ""  # the rejected answer has no replacement
                self._apply_plan(plan, (yield partial(undo, self.session, plan)))
            self.done = plan is None or self.session.stop_reason is not None
            if plan is None:
                self._snapshots.close()

    def _accept_choice(self, choice: ResolvedTurn) -> bool:
        """Use the selected response as the next turn; return False if the guard rejects it."""
        message = build_assistant_message(choice.response)
        self._response_message = apply_repaired_turn(message, choice.turn) if choice.is_repaired else message
        self._turn = build_step(self._response_message) if choice.is_repaired else choice.turn
        if choice.plan is not None:
            self._apply_plan(choice.plan, ())
        return choice.plan is None

    def _commit_turn(self, turn: Step, observations: Sequence[Observation]) -> None:
        results = (
            build_tool_message(call, one.content)
            for call, one in zip(turn.tool_calls, observations, strict=True)
        )
        self.branch.add_step(self._response_message, *results)
        self.answer = turn.content or self.answer
        self.session.commit(replace(turn, observations=tuple(observations)))
        self.done = self.session.stop_reason is not None

    def _apply_plan(self, plan: RecoveryPlan, failed_effects: Sequence[Effect]) -> None:
        """Apply a plan that the session has executed to messages, tools and environment."""
        for action in plan.actions:
            match action:
                case Rewind(to_step=to_step, by=by):
                    self.branch.truncate(to_step)
                    self._snapshots.roll_back(to_step, by)
                case Restart(note=note):
                    self.branch.truncate(0)
                    self._snapshots.restore_first()
                    self._add_task(note)
                case SendMessage(text=text):
                    self.branch.add_guard_message(text)
                case DisableTools(tools=tools):
                    self._disabled_tools |= set(tools)
                case Repair(step=step, text=text):
                    self.branch.replace_result(step, action.index, text)
                    self._snapshots.discard_from_current()
                case Escalate(question=question) if self._ask is not None:
                    self.branch.add_guard_message(self.session.record_person_answer(self._ask(question)))
                case _:
                    pass
        if failed_effects:
            self.branch.add_guard_message(format_failed_undo(failed_effects))
        self.done = self.session.stop_reason is not None
