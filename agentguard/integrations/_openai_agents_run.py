"""One guarded run of the OpenAI Agents SDK: turns as events of a session, plans as a view of its items."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from agents import Agent, Model, RunConfig, Runner
from agents.items import ModelResponse
from agents.run import CallModelData, ModelInputData

from agentguard.errors import RunStopped
from agentguard.integrations._openai_agents_asking import Asking, Judged, closing, repaired_response
from agentguard.integrations._openai_agents_items import (
    View,
    arguments_of,
    seen_in,
    step_of,
    steps_of,
    usage_of,
)
from agentguard.integrations._openai_agents_session import Kept
from agentguard.integrations._openai_agents_wrap import GuardedModel, GuardedProvider, Wrapping
from agentguard.live import twins
from agentguard.live.acting import arun_tool, atold, aundo_all
from agentguard.live.choosing import choosing
from agentguard.live.session import Session
from agentguard.recover.base import Capabilities, Plan, Repair, Restart, Rewind, Variant, Withhold
from agentguard.recover.effects import from_annotations
from agentguard.trajectory.model import Step, Trajectory

if TYPE_CHECKING:
    from agentguard.guard import Guard

Ask = Callable[[str], str | Awaitable[str]]


class _Again(Exception):
    """Begin the runner again: another agent has to go on, or with fewer tools, which are settled by now."""


class GuardedRun:
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
        self._asking = Asking(self._verdict)
        self._wrapping = Wrapping(
            self._invoke, self._asking, models=self._model, withheld=self._withheld, declare=self._declare
        )
        self._agent = self._wrapping.agent(agent)
        self._view = View()
        self._turn: Step | None = None
        self._failed: set[str] = set()
        self._steps: list[Step] = []
        self._speakers: list[Agent[Any]] = []
        self._given = 0
        self._kept: Kept | None = None
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
            self._kept = Kept(keep, self._config)
            items = await self._kept.load(items)
        self._session = self._guard.session(self._meta(items), self._can())
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
        while not over and self.cancelled is None:
            result = Runner.run_streamed(self._agent, self._next(), **self._options)
            begun(result)
            try:
                async with closing(result.stream_events()) as events:
                    async for event in events:
                        yield event
            except _Again:
                continue
            over = self.cancelled is None and await self._ended(result)
            if self.cancelled == "after_turn":
                self._take_in(result.to_input_list(mode="normalized"))
                await self._keep()

    def original(self, agent: Agent[Any]) -> Agent[Any]:
        """The caller's agent that one was copied from."""
        return self._wrapping.original(agent)

    @property
    def session(self) -> Session:
        """The session of the run."""
        return self._session

    def shown(self) -> list[Any]:
        """The items that are left."""
        return self._view.shown()

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
            withhold=True,
            restart=True,
            repair=True,
            sample=True,
            hand_over=self._ask is not None,
            sticky_view=True,
        )

    def _begin(self, items: Sequence[Any]) -> None:
        """Commit what the run begins with; nothing of it is ever taken back."""
        self._view.take(items)
        for step in steps_of(items, agent=self._agent.name):
            self._commit(step)
        self._given = len(self._steps)

    def _set(self, options: Mapping[str, Any]) -> None:
        given = options.get("run_config")
        self._config = RunConfig(**given) if isinstance(given, dict) else given or RunConfig()
        self._options = {**options, "run_config": self._guarded(self._config)}

    def _next(self) -> Any:
        """What the runner begins with: the items that are left, or the state of a paused run."""
        state, self._state = self._state, None
        return self._view.renew() if state is None else state

    def _guarded(self, config: RunConfig) -> RunConfig:
        """The caller's configuration with the guard's seams; the caller's filter sees the guard's view."""
        theirs = config.call_model_input_filter

        async def view(data: CallModelData[Any]) -> ModelInputData:
            shown = await self._before_model(data)
            if theirs is None:
                return shown
            filtered = theirs(replace(data, model_data=shown))
            return await filtered if inspect.isawaitable(filtered) else filtered

        model = config.model
        return replace(
            config,
            call_model_input_filter=view,
            tool_not_found_behavior="return_error_to_model",  # a hint, if nothing else, comes after it
            model_provider=GuardedProvider(config.model_provider, self._asking),
            model=GuardedModel(model, self._asking, self._model) if isinstance(model, Model) else model,
        )

    async def _before_model(self, data: CallModelData[Any]) -> ModelInputData:
        """The boundary between turns: commit the last one, do what is to be done, show what is left."""
        self._asking.new_turn()
        self._take_in(data.model_data.input)
        speaker = self._agent = self._wrapping.agent(data.agent)
        withheld = len(self._withheld)
        plan = self._session.boundary()
        if plan is not None:
            speaker = await self._apply(plan)
        await self._keep()
        self._stop_if_stopped()
        if speaker is not self._agent or len(self._withheld) > withheld:
            self._agent = speaker
            raise _Again
        return ModelInputData(input=self._view.shown(), instructions=data.model_data.instructions)

    async def _verdict(
        self, response: ModelResponse, more: Callable[[Variant], Awaitable[ModelResponse]], *, last: bool
    ) -> Judged:
        """Judge an answer before any tool runs; what is told then is shown at every later call, too."""
        if last:
            self._turn = self._read(response)
            return Judged(response)
        choice = await twins.arun(choosing(self._session, response, self._read, lambda one: one), more)
        self._turn = choice.turn
        self._stop_if_stopped()
        if choice.plan is None:
            made = choice.answer
            return Judged(repaired_response(made, choice.turn) if choice.repaired else made)
        texts = await atold(choice.plan, ask=self._ask)
        for text in texts:
            self._view.tell(text)
        return Judged(response, [{"role": "user", "content": text} for text in texts])

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
            self._session.ledger.declare(tool, from_annotations(annotations))

    def _take_in(self, items: Sequence[Any]) -> None:
        goes_on = self._view.take(items)
        turn, self._turn = self._turn, None
        if turn is not None:
            self._commit(seen_in(items, turn, self._failed))
        if not goes_on:  # a handoff has rewritten the list: nothing before it can be cut
            self._given = len(self._steps)
            if self._kept is not None:
                self._kept.rewritten(self._view.shown())

    async def _keep(self) -> None:
        """At a boundary: let the caller's session hold what is left."""
        if self._kept is not None:
            await self._kept.sync(self._view.shown())

    def _commit(self, step: Step) -> None:
        self._steps.append(self._session.commit(step))
        self._speakers.append(self._agent)
        self._view.step_ends()

    async def _ended(self, result: Any) -> bool:
        """Whether the run is over: the runner has ended, and the guard accepts that."""
        if result.interruptions:
            return True  # it only paused, for an approval; its last turn is not whole
        self._take_in(result.to_input_list(mode="normalized"))  # as the model sees it after handoffs
        plan = self._session.end()
        if plan is not None:
            self._agent = await self._apply(plan)
        await self._keep()
        self._stop_if_stopped()
        return plan is None

    async def _apply(self, plan: Plan) -> Agent[Any]:
        """Make the view agree with a plan that the session has carried out; returns who goes on."""
        speaker = self._agent
        failed = await aundo_all(self._session, plan)
        for action in plan.actions:
            if isinstance(action, Repair):
                at = int(action.field.partition("[")[2].rstrip("]"))
                self._view.repair(self._steps[action.step].observations[at].call_id, action.text)
            elif isinstance(action, Rewind | Restart):
                speaker = self._back(action.to_step if isinstance(action, Rewind) else 0)
            elif isinstance(action, Withhold):
                self._withheld |= set(action.tools)
        for text in await atold(plan, failed, ask=self._ask):
            self._view.tell(text)
        return speaker

    def _back(self, to_step: int) -> Agent[Any]:
        """Cut the view before a step; what the run began with stays, and is committed again."""
        at = max(to_step, self._given)
        speaker = self._speakers[at] if at < len(self._speakers) else self._agent
        self._view.cut(at)
        again = self._steps[to_step:at]
        del self._steps[to_step:], self._speakers[at:]
        for step in again:
            self._steps.append(self._session.commit(step))
        return speaker

    def _stop_if_stopped(self) -> None:
        if self._session.stopped is not None:
            raise RunStopped(self._session.stopped)


async def _plain(tool: Callable[[], Awaitable[Any]]) -> Any:
    return await tool()
