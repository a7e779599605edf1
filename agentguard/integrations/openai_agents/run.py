"""One guarded run of the OpenAI Agents SDK: turns as events of a session, plans as a view of its items."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from agents import Agent, Model, RunConfig, Runner
from agents.items import ModelResponse
from agents.run import CallModelData, ModelInputData

from agentguard import _sync_async
from agentguard.errors import RunStopped
from agentguard.integrations.openai_agents.history import RunLine
from agentguard.integrations.openai_agents.items import arguments_of, seen_in, step_of, steps_of, usage_of
from agentguard.integrations.openai_agents.model_calls import (
    JudgedResponse,
    ModelCall,
    closing,
    repaired_response,
)
from agentguard.integrations.openai_agents.sdk_session import GuardedSession
from agentguard.integrations.openai_agents.wrappers import Wrapping, guarded_config
from agentguard.recover.strategy import (
    Capabilities,
    DisableTools,
    RecoveryPlan,
    Repair,
    Restart,
    Rewind,
    SampleVariant,
)
from agentguard.recover.tool_effects import from_annotations
from agentguard.runtime.session import Session, aend_session
from agentguard.runtime.tool_execution import acollect_messages, arun_tool, aundo_effects
from agentguard.runtime.turn_resolution import resolve_turn
from agentguard.trajectory.model import Step, Trajectory

if TYPE_CHECKING:
    from agentguard.guard import Guard

Ask = Callable[[str], str | Awaitable[str]]


class _Again(Exception):
    """Begin the runner again: another agent has to go on, or with fewer tools, which are settled by now."""


class AgentsGuardedRun:
    """One guarded run.

    Args:
        guard: whose rules hold.
        agent: where the run begins.
        ask: called with a question when a person must decide.

    Attributes:
        cancelled: how the caller has cancelled a streamed run.
    """

    def __init__(self, guard: Guard, agent: Agent[Any], ask: Ask | None) -> None:
        self._guard, self._ask = guard, ask
        self._withheld: set[str] = set()
        self._asking = ModelCall(self._verdict)
        self._wrapping = Wrapping(
            self._invoke, self._asking, models=self._model, withheld=self._withheld, declare=self._declare
        )
        self._agent = self._wrapping.agent(agent)
        self._turn: Step | None = None
        self._failed: set[str] = set()
        self._kept: GuardedSession | None = None
        self.cancelled: Literal["immediate", "after_turn"] | None = None
        self._state: Any = None

    async def begin(
        self, input: str | list[Any], on_run: Callable[[Session], None] | None, options: Mapping[str, Any]
    ) -> None:
        """Begin the session; ``options`` are those of the runner."""
        items = [{"role": "user", "content": input}] if isinstance(input, str) else list(input)
        self._set(options)
        keep = self._options.pop("session", None)
        if keep is not None:
            self._kept = GuardedSession(keep, self._config)
            items = await self._kept.load(items)
        self._session = self._guard.session(self._meta(items), self._can())
        self._line = RunLine(self._session)
        if on_run is not None:
            on_run(self._session)
        self._begin(items)

    def resume(self, state: Any, options: Mapping[str, Any]) -> None:
        """Go on with a run that waited for an approval, from the SDK's state of it."""
        self._set(options)
        self._options.pop("session", None)  # the run still has its own
        self._state = state

    async def go(self) -> Any:
        """Run to the end, or to where the run waits for an approval; returns the SDK's last result."""
        while True:
            try:
                result = await Runner.run(self._agent, self._next(), **self._options)
            except _Again:
                continue
            if await self._ended(result):
                return result

    async def stream(self, begun: Callable[[Any], None]) -> AsyncIterator[Any]:
        """As `go`; yields the SDK's events, and tells of each of its results when its runner begins."""
        over = False
        while not over and not self._cancels():
            result = Runner.run_streamed(self._agent, self._next(), **self._options)
            begun(result)
            try:
                async with closing(result.stream_events()) as events:
                    async for event in events:
                        yield event
            except _Again:
                continue
            over = await (self._left(result) if self._cancels() else self._ended(result))

    def _cancels(self) -> bool:
        return self.cancelled is not None

    async def _left(self, result: Any) -> bool:
        """The caller has cancelled the run, at once or after its last turn, which is whole then."""
        if self.cancelled == "after_turn":
            self._take_in(result.to_input_list(mode="normalized"))
            await self._keep()
        return True

    def original(self, agent: Agent[Any]) -> Agent[Any]:
        """The caller's agent that one was copied from."""
        return self._wrapping.original(agent)

    @property
    def session(self) -> Session:
        """The session of the run."""
        return self._session

    def shown(self) -> list[Any]:
        """The items that are left."""
        return self._line.view.shown()

    def _meta(self, items: Sequence[Any]) -> Trajectory:
        asked = [step for step in steps_of(items, agent=self._agent.name) if step.source == "user"]
        prompt = self._agent.instructions
        return Trajectory(
            id=f"run-{uuid.uuid4().hex[:12]}",
            format="event_log",
            task=asked[-1].content if asked else "",
            steps=(),
            tools=self._wrapping.specs(),
            system_prompts={self._agent.name: prompt} if isinstance(prompt, str) else {},
        )

    def _can(self) -> Capabilities:
        return Capabilities(
            reject=True,
            truncate=True,
            compensate=True,
            disable_tools=True,
            restart=True,
            repair=True,
            sample=True,
            escalate=self._ask is not None,
            persistent_view=True,
        )

    def _begin(self, items: Sequence[Any]) -> None:
        """Commit what the run begins with; nothing of it is ever taken back."""
        self._line.view.take(items)
        for step in steps_of(items, agent=self._agent.name):
            self._line.commit(step, self._agent)
        self._line.keep()

    def _set(self, options: Mapping[str, Any]) -> None:
        given = options.get("run_config")
        self._config = RunConfig(**given) if isinstance(given, dict) else given or RunConfig()
        seams = guarded_config(self._config, self._before_model, self._asking, self._model)
        self._options = {**options, "run_config": seams}

    def _next(self) -> Any:
        """What the runner begins with: the items that are left, or the state of a paused run."""
        state, self._state = self._state, None
        return self._line.view.renew() if state is None else state

    async def _before_model(self, data: CallModelData[Any]) -> ModelInputData:
        """The boundary between turns: commit the last one, do what is to be done, show what is left."""
        self._asking.new_turn()
        self._take_in(data.model_data.input)
        speaker = self._agent = self._wrapping.agent(data.agent)
        withheld = len(self._withheld)
        plan = self._session.check_boundary()
        if plan is not None:
            speaker = await self._apply(plan)
        await self._keep()
        self._stop_if_stopped()
        if speaker is not self._agent or len(self._withheld) > withheld:
            self._agent = speaker
            raise _Again
        return ModelInputData(input=self._line.view.shown(), instructions=data.model_data.instructions)

    async def _verdict(
        self,
        response: ModelResponse,
        more: Callable[[SampleVariant], Awaitable[ModelResponse]],
        *,
        last: bool,
    ) -> JudgedResponse:
        """Judge an answer before any tool runs; what is told then is shown at every later call, too."""
        if last:
            self._turn = self._read(response)
            return JudgedResponse(response)
        choice = await _sync_async.run_async(
            resolve_turn(self._session, response, self._read, lambda one: one), more
        )
        self._turn = choice.turn
        self._stop_if_stopped()
        if choice.plan is None:
            made = choice.response
            return JudgedResponse(repaired_response(made, choice.turn) if choice.is_repaired else made)
        texts = await acollect_messages(choice.plan, ask_person=self._ask)
        for text in texts:
            self._line.view.tell(text)
        return JudgedResponse(response, [{"role": "user", "content": text} for text in texts])

    def _read(self, response: ModelResponse) -> Step:
        turn = step_of(response.to_input_items(), agent=self._agent.name)
        return replace(turn, usage=usage_of(response.usage)) if response.usage.requests else turn

    def _model(self, name: str) -> Model:
        """The model of a name, as the caller's provider gives it."""
        return self._config.model_provider.get_model(name)

    async def _invoke(self, context: Any, arguments: str, tool: Callable[[], Awaitable[Any]]) -> Any:
        """Let each effect happen once."""
        context.run_config = self._config  # an agent inside of the tool would run with the guard's seams
        given = arguments_of(arguments)
        if given is None:
            return await tool()  # no arguments, no call: the SDK says so
        claim = self._session.begin_tool(context.tool_name, given)
        try:
            return await arun_tool(self._session, claim, lambda: _plain(tool))
        except Exception:
            self._failed.add(context.tool_call_id)
            raise

    def _declare(self, tool: str, annotations: dict[str, Any]) -> None:
        """What the server of an MCP tool says of it holds where nothing else was declared."""
        if tool not in self._guard.tools:
            self._session.ledger.declare_tool(tool, from_annotations(annotations))

    def _take_in(self, items: Sequence[Any]) -> None:
        goes_on = self._line.view.take(items)
        turn, self._turn = self._turn, None
        if turn is not None:
            self._line.commit(seen_in(items, turn, self._failed), self._agent)
        if not goes_on:  # a handoff has rewritten the list: nothing before it can be cut
            self._line.keep()
            if self._kept is not None:
                self._kept.rewritten(self._line.view.shown())

    async def _keep(self) -> None:
        """At a boundary: let the caller's session hold what is left."""
        if self._kept is not None:
            await self._kept.sync(self._line.view.shown())

    async def _ended(self, result: Any) -> bool:
        """Whether the run is over: the runner has ended, and the guard accepts that."""
        if result.interruptions:
            return True  # it only paused, for an approval; its last turn is not whole
        self._take_in(result.to_input_list(mode="normalized"))  # as the model sees it after handoffs
        plan = await aend_session(self._session)
        if plan is not None:
            self._agent = await self._apply(plan)
        await self._keep()
        self._stop_if_stopped()
        return plan is None

    async def _apply(self, plan: RecoveryPlan) -> Agent[Any]:
        """Make the view agree with a plan that the session has carried out; returns who goes on."""
        speaker = self._agent
        failed = await aundo_effects(self._session, plan)
        for action in plan.actions:
            if isinstance(action, Repair):
                self._line.repair(action.step, action.field, action.text)
            elif isinstance(action, Rewind | Restart):
                to_step = action.to_step if isinstance(action, Rewind) else 0
                speaker = self._line.back(to_step, speaker=self._agent)
            elif isinstance(action, DisableTools):
                self._withheld |= set(action.tools)
        for text in await acollect_messages(plan, failed, ask_person=self._ask):
            self._line.view.tell(text)
        return speaker

    def _stop_if_stopped(self) -> None:
        if self._session.stop_reason is not None:
            raise RunStopped(self._session.stop_reason)


async def _plain(tool: Callable[[], Awaitable[Any]]) -> Any:
    return await tool()
