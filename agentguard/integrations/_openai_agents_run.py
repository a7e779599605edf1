"""One guarded run of the OpenAI Agents SDK: turns as events of a session, plans as a view of its items."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agents import Agent, Model, RunConfig, Runner
from agents.items import ModelResponse
from agents.run import CallModelData, ModelInputData
from agents.usage import Usage as SdkUsage

from agentguard.errors import RunStopped
from agentguard.integrations._openai_agents_items import (
    View,
    arguments_of,
    seen_in,
    step_of,
    steps_of,
    usage_of,
)
from agentguard.integrations._openai_agents_wrap import GuardedModel, GuardedProvider, Wrapping
from agentguard.live.acting import arun_tool, atold, aundo_all
from agentguard.live.session import Session
from agentguard.recover.base import Capabilities, Plan, Restart, Rewind, Withhold
from agentguard.recover.effects import from_annotations
from agentguard.trajectory.model import Step, Trajectory

if TYPE_CHECKING:
    from agentguard.guard import Guard

Ask = Callable[[str], str | Awaitable[str]]

MOST_REFUSALS = 10
"""Times one turn may be refused in a row before it is let through: a budget may be without limits."""


class _Again(Exception):
    """Begin the runner again: another agent has to go on, or with fewer tools, which are settled by now."""


class GuardedRun:
    """One guarded run.

    Args:
        guard: whose rules hold.
        agent: where the run begins.
        ask: called with a question when a person must decide.
    """

    def __init__(self, guard: Guard, agent: Agent[Any], ask: Ask | None) -> None:
        self._guard, self._ask = guard, ask
        self._withheld: set[str] = set()
        self._wrapping = Wrapping(self._invoke, self._respond, self._withheld, self._declare)
        self._agent = self._wrapping.agent(agent)
        self._view = View()
        self._turn: Step | None = None
        self._failed: set[str] = set()
        self._steps: list[Step] = []
        self._speakers: list[Agent[Any]] = []
        self._given = 0

    async def go(
        self, input: str | list[Any], on_run: Callable[[Session], None] | None, options: dict[str, Any]
    ) -> tuple[Any, Agent[Any]]:
        """Run to the end; returns the SDK's last result, and who spoke last, as the caller made it."""
        items = [{"role": "user", "content": input}] if isinstance(input, str) else list(input)
        self._session = self._guard.session(self._meta(items), self._can())
        if on_run is not None:
            on_run(self._session)
        self._begin(items)
        options["run_config"] = self._config(options.get("run_config"))
        while True:
            try:
                result = await Runner.run(self._agent, self._view.renew(), **options)
            except _Again:
                continue
            if await self._ended(result):
                return result, self._wrapping.original(result.last_agent)

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
            hand_over=self._ask is not None,
            sticky_view=True,
        )

    def _begin(self, items: Sequence[Any]) -> None:
        """Commit what the run begins with; nothing of it is ever taken back."""
        self._view.take(items)
        for step in steps_of(items, agent=self._agent.name):
            self._commit(step)
        self._given = len(self._steps)

    def _config(self, given: Any) -> RunConfig:
        """The caller's configuration with the guard's seams; the caller's filter sees the guard's view."""
        config = RunConfig(**given) if isinstance(given, dict) else given or RunConfig()
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
            model_provider=GuardedProvider(config.model_provider, self._respond),
            model=GuardedModel(model, self._respond) if isinstance(model, Model) else model,
        )

    async def _before_model(self, data: CallModelData[Any]) -> ModelInputData:
        """The boundary between turns: commit the last one, do what is to be done, show what is left."""
        self._take_in(data.model_data.input)
        self._agent = self._wrapping.agent(data.agent)
        plan = self._session.boundary()
        if plan is not None:
            withheld = len(self._withheld)
            speaker = await self._apply(plan)
            if speaker is not self._agent or len(self._withheld) > withheld:
                self._agent = speaker
                raise _Again
        self._stop_if_stopped()
        return ModelInputData(input=self._view.shown(), instructions=data.model_data.instructions)

    async def _respond(
        self, items: list[Any], ask: Callable[[list[Any]], Awaitable[ModelResponse]]
    ) -> ModelResponse:
        """Ask the model, and again with the correction where its answer is refused before any tool ran."""
        spent = SdkUsage()
        for left in reversed(range(MOST_REFUSALS + 1)):
            response = await ask(items)
            spent.add(response.usage)
            turn = step_of(response.to_input_items(), agent=self._agent.name)
            self._turn = replace(turn, usage=usage_of(response.usage))
            plan = self._session.propose(self._turn) if left else None
            self._stop_if_stopped()
            if plan is None:
                break
            for text in await atold(plan, ask=self._ask):
                self._view.tell(text)
                items = [*items, {"role": "user", "content": text}]
        return replace(response, usage=spent)

    async def _invoke(self, context: Any, arguments: str, tool: Callable[[], Awaitable[Any]]) -> Any:
        """Let each effect happen once."""
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

    def _commit(self, step: Step) -> None:
        self._steps.append(self._session.commit(step))
        self._speakers.append(self._agent)
        self._view.step_ends()

    async def _ended(self, result: Any) -> bool:
        """Whether the run is over: the runner has ended, and the guard accepts that."""
        self._take_in(result.to_input_list(mode="normalized"))  # as the model sees it after handoffs
        if result.interruptions:
            return True  # it only paused, for an approval
        plan = self._session.end()
        if plan is None:
            self._stop_if_stopped()
            return True
        self._agent = await self._apply(plan)
        return False

    async def _apply(self, plan: Plan) -> Agent[Any]:
        """Make the view agree with a plan that the session has carried out; returns who goes on."""
        speaker = self._agent
        failed = await aundo_all(self._session, plan)
        for action in plan.actions:
            if isinstance(action, Rewind | Restart):
                speaker = self._back(action.to_step if isinstance(action, Rewind) else 0)
            elif isinstance(action, Withhold):
                self._withheld |= set(action.tools)
        self._stop_if_stopped()
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
