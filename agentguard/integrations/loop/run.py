"""Any loop of one's own: two calls a turn, and the guard does the rest.

::

    with guard.run(task, tools=[book, find]) as run:
        while not run.done:
            run.tools(run.model(call_llm))

``call_llm(messages)`` or ``call_llm(messages, tools)`` gets OpenAI-shaped messages (and the tools that are on
offer now) and returns an assistant message, a completion or plain text. In an asynchronous loop the same two
are ``await run.amodel(...)`` and ``await run.atools(...)``.
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
from agentguard.intercept.chat_steps import (
    ChatBranch,
    Message,
    apply_repaired_turn,
    build_assistant_message,
    build_messages,
    build_step,
    build_tool_message,
)
from agentguard.recover.effect_ledger import Effect, EffectStore
from agentguard.recover.snapshots.manager import SnapshotOptions
from agentguard.recover.strategy import (
    Capabilities,
    DisableTools,
    Escalate,
    Recovery,
    RecoveryPlan,
    Repair,
    Restart,
    Rewind,
    SampleVariant,
    SendMessage,
)
from agentguard.runtime.resumption import get_restart_note, list_disabled_tools
from agentguard.runtime.session import end_session
from agentguard.runtime.tool_execution import aundo_effects, undo_effects
from agentguard.runtime.turn_resolution import ResolvedTurn, resolve_turn
from agentguard.trajectory.event_log.recorder import RunRecorder
from agentguard.trajectory.model import Observation, Source, Step, Trajectory

if TYPE_CHECKING:
    from agentguard.guard import Guard


ModelFunction = Callable[..., Any]


class ModelFunctions:
    """The models of a loop besides its own, by name.

    Args:
        named: the functions.
        wanted: names that the policy asks for.

    Raises:
        ConfigError: one of those is not there.
    """

    def __init__(self, functions: Mapping[str, ModelFunction] | None, required_names: frozenset[str]) -> None:
        self._functions = dict(functions or {})
        if missing := required_names - set(self._functions):
            names = ", ".join(sorted(missing))
            raise ConfigError(f"run: the policy asks the model {names}: give models={{name: function}}")

    def build_request(
        self,
        function: ModelFunction,
        messages: Sequence[Message],
        tools: Sequence[Any],
        variant: SampleVariant | None = None,
    ) -> Callable[[], Any]:
        """What asks for a turn, or for a candidate of it.

        Args:
            call: the agent's own model.
            messages: what it is given.
            tools: those on offer, given if the function takes two arguments.
            variant: how a candidate is asked for; its temperature is given if the function takes one.
        """
        how = variant or SampleVariant()
        chosen = self._functions[how.model] if how.model else function
        taken = _list_parameters(chosen)
        given: list[Any] = [
            [*messages, *([{"role": "user", "content": how.instruction}] if how.instruction else ())]
        ]
        if len([name for name in taken if name != "temperature"]) > 1:
            given.append(tools)
        warm = how.temperature is not None and "temperature" in taken
        return partial(chosen, *given, **({"temperature": how.temperature} if warm else {}))


def parse_answer(answer: Any) -> Step:
    """What a model function returned, as a turn whose tools have not run."""
    return build_step(build_assistant_message(answer))


def _list_parameters(function: ModelFunction) -> list[str]:
    """Names of a function's parameters; one where they cannot be known."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ["messages"]


MAX_REJECTIONS = 10
"""Times one turn may be refused in a row before it is let through: a budget may be without limits."""


class LoopRun:
    """One guarded run of a loop; a context manager.

    Args:
        guard: whose run it is; `Guard.run` gives itself.
        task: what is asked of the agent: the first user message.
        tools: functions by which calls are carried out, as a sequence or by name; what they do to the world
            is declared by `Guard.tool`.
        system: the system prompt.
        id: of the run; made up if absent.
        ask: called with a question when a person must decide; the answer goes to the agent.
        save, restore: give, and put back, the state of the environment the tools act on. With both, a
            rollback can restore a state that was saved before the step, and not the messages alone.
        snapshots: how the state is saved: as JSON, as often as it pays, within 32 MiB, if absent.
        models: other models by name, each as the function given to `model`: alternates, and those that vote.
        book: where effects are kept; in memory if absent.
        recorder: keeps the steps; one in memory if absent.
        resume: go on with the run of that ``id``, if the guard's store has it: from its last whole turn, or,
            with ``restore``, from the last turn before which the state was saved. It is put back here.
        tags: texts by which the run is found again in a list of runs.

    Attributes:
        session: the guarded run itself: findings, recoveries, the recorded trajectory.
        done: the run has ended: the agent stopped and was accepted, or the guard stopped it.
        answer: the agent's last text.
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
        can = Capabilities(
            reject=True,
            truncate=True,
            fork=save is not None,
            compensate=True,
            disable_tools=True,
            restart=True,
            repair=True,
            sample=True,
            escalate=ask is not None,
        )
        self.session = guard.session(meta, can, effect_store=effect_store, recorder=recorder, resume=resume)
        self._model_functions = ModelFunctions(models, self.session.config.planner.models)
        self.branch = ChatBranch()
        self.done, self.answer = False, ""
        store = guard.components.store
        self._snapshots = EnvironmentSnapshots(self.session, save, restore, options=snapshots, store=store)
        self._disabled_tools = list_disabled_tools(self.session)
        self._resume()

    @property
    def messages(self) -> list[Message]:
        """The messages the model gets next."""
        return self.branch.messages

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The tools on offer now, in the chat API's shape."""
        return self._tool_functions.build_definitions(self._disabled_tools)

    @property
    def trajectory(self) -> Trajectory:
        """The run as it is now."""
        return self.session.run

    @property
    def recoveries(self) -> tuple[Recovery, ...]:
        """What was done about failures so far."""
        return tuple(self.session.recoveries)

    def model(self, call: Callable[..., Any]) -> Step | None:
        """Ask the model for the next turn, again where the guard refuses it.

        Returns:
            The turn, to be given to `tools`; None if the run was stopped instead.
        """
        return _sync_async.run_sync(self._request_turn(call, undo_effects), _sync_async.call)

    async def amodel(self, call: Callable[..., Awaitable[Any]]) -> Step | None:
        """As `model`, for a model that is awaited."""
        return await _sync_async.run_async(self._request_turn(call, aundo_effects), _sync_async.call)

    def tools(self, turn: Step | None) -> None:
        """Carry out the calls of a turn, each effect once; a turn without calls ends the run if accepted.

        A tool that raises is an observation for the agent, with ``is_error`` set.
        """
        if turn is not None and not self.done:
            _sync_async.run_sync(self._execute_turn(turn, execute_calls, undo_effects), _sync_async.call)

    async def atools(self, turn: Step | None) -> None:
        """As `tools`; the calls of a turn run side by side, and tools may be coroutine functions."""
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
            self.session.end()  # once more does nothing
            self._snapshots.close()
            self.done = True

    def raise_if_stopped(self) -> None:
        """Raise RunStopped with the reason if the guard ended the run."""
        if self.session.stop_reason is not None:
            raise RunStopped(self.session.stop_reason)

    def _add_task(self, note: str) -> None:
        """Say what is asked, as far as it was not said before the process died."""
        if self._system and not len(self.session):
            self._add_message({"role": "system", "content": self._system})
        self._add_message({"role": "user", "content": f"{self._task}\n\n{note}" if note else self._task})

    def _resume(self) -> None:
        """Put the conversation together from the steps that were kept; begin it if there are none."""
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
    ) -> _sync_async.Effects[Step | None]:
        """Ask for the next turn; yields what is to be called, at once or awaited."""
        for _ in range(MAX_REJECTIONS):
            plan = self.session.check_boundary()
            if plan is not None:
                self._apply_plan(plan, (yield partial(undo, self.session, plan)))
            if self.done:
                return None
            self._snapshots.save_if_due()
            answer = yield self._build_request(function)
            choice = yield from resolve_turn(
                self.session, answer, parse_answer, partial(self._build_request, function)
            )
            if self._accept_choice(choice):
                break
        return self._turn

    def _execute_turn(
        self, turn: Step, execute_calls: Callable[..., Any], undo: Callable[..., Any]
    ) -> _sync_async.Effects[None]:
        """Carry out a turn, and let the run end after one without calls; yields as `_asked`."""
        seen = yield partial(execute_calls, self.session, self._tool_functions, turn.tool_calls)
        self._commit_turn(turn, seen)
        if not turn.tool_calls:
            plan = yield from end_session(self.session)
            if plan is not None:
                if self.session.stop_reason is not None:
                    self.answer = ""  # it was refused, and there is no other
                self._apply_plan(plan, (yield partial(undo, self.session, plan)))
            self.done = plan is None or self.session.stop_reason is not None
            if plan is None:
                self._snapshots.close()

    def _accept_choice(self, choice: ResolvedTurn) -> bool:
        """Take what was chosen as the next turn; False if it was refused: the model is to be asked again."""
        message = build_assistant_message(choice.response)
        self._answer_message = apply_repaired_turn(message, choice.turn) if choice.is_repaired else message
        self._turn = build_step(self._answer_message) if choice.is_repaired else choice.turn
        if choice.plan is not None:
            self._apply_plan(choice.plan, ())
        return choice.plan is None

    def _commit_turn(self, turn: Step, observations: Sequence[Observation]) -> None:
        answers = (
            build_tool_message(call, one.content)
            for call, one in zip(turn.tool_calls, observations, strict=True)
        )
        self.branch.add_step(self._answer_message, *answers)
        self.answer = turn.content or self.answer
        self.session.commit(replace(turn, observations=tuple(observations)))
        self.done = self.session.stop_reason is not None

    def _apply_plan(self, plan: RecoveryPlan, failed_effects: Sequence[Effect]) -> None:
        """Make messages, tools and state agree with a plan that the session has carried out."""
        for action in plan.actions:
            match action:
                case Rewind(to_step=to_step, by=by):
                    self.branch.truncate(to_step)
                    self._snapshots.roll_back(to_step, by)
                case Restart(note=added):
                    self.branch.truncate(0)
                    self._snapshots.restore_first()
                    self._add_task(added)
                case SendMessage(text=text):
                    self.branch.add_guard_message(text)
                case DisableTools(tools=tools):
                    self._disabled_tools |= set(tools)
                case Repair(step=step, field=field, text=text):
                    self.branch.replace_result(step, int(field.partition("[")[2].rstrip("]")), text)
                    self._snapshots.discard_from_current()
                case Escalate(question=question) if self._ask is not None:
                    self.branch.add_guard_message(self._ask(question))
                case _:
                    pass
        if failed_effects:
            names = ", ".join(effect.tool for effect in failed_effects)
            self.branch.add_guard_message(f"[guard] Undoing {names} failed: what it did still stands.")
        self.done = self.session.stop_reason is not None
