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
from agentguard.integrations.openai_agents.items import (
    RunHistory,
    add_observations,
    build_step,
    build_steps,
    build_usage,
    parse_arguments,
)
from agentguard.integrations.openai_agents.model_calls import (
    JudgedResponse,
    ModelCaller,
    apply_repaired_turn,
    close_on_exit,
)
from agentguard.integrations.openai_agents.sdk_session import SdkSessionWriter
from agentguard.integrations.openai_agents.wrappers import AgentWrapper, build_guarded_config
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

AskCallback = Callable[[str], str | Awaitable[str]]


class _RestartRunner(Exception):
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

    def __init__(self, guard: Guard, agent: Agent[Any], ask: AskCallback | None) -> None:
        self._guard, self._ask = guard, ask
        self._disabled_tools: set[str] = set()
        self._model_caller = ModelCaller(self._judge_response)
        self._agent_wrapper = AgentWrapper(
            self._invoke_tool,
            self._model_caller,
            get_model=self._get_model,
            disabled_tools=self._disabled_tools,
            declare_tool=self._declare_tool,
        )
        self._agent = self._agent_wrapper.wrap_agent(agent)
        self._turn: Step | None = None
        self._failed_call_ids: set[str] = set()
        self._sdk_session: SdkSessionWriter | None = None
        self.cancel_mode: Literal["immediate", "after_turn"] | None = None
        self._paused_state: Any = None

    async def start(
        self, input: str | list[Any], on_run: Callable[[Session], None] | None, options: Mapping[str, Any]
    ) -> None:
        """Begin the session; ``options`` are those of the runner."""
        items = [{"role": "user", "content": input}] if isinstance(input, str) else list(input)
        self._set_options(options)
        keep = self._options.pop("session", None)
        if keep is not None:
            self._sdk_session = SdkSessionWriter(keep, self._config)
            items = await self._sdk_session.load(items)
        self._session = self._guard.session(self._build_metadata(items), self._build_capabilities())
        self._history = RunHistory(self._session)
        if on_run is not None:
            on_run(self._session)
        self._commit_input(items)

    def resume(self, state: Any, options: Mapping[str, Any]) -> None:
        """Go on with a run that waited for an approval, from the SDK's state of it."""
        self._set_options(options)
        self._options.pop("session", None)  # the run still has its own
        self._paused_state = state

    async def run(self) -> Any:
        """Run to the end, or to where the run waits for an approval; returns the SDK's last result."""
        while True:
            try:
                result = await Runner.run(self._agent, self._build_runner_input(), **self._options)
            except _RestartRunner:
                continue
            if await self._judge_end(result):
                return result

    async def stream(self, on_result: Callable[[Any], None]) -> AsyncIterator[Any]:
        """As `go`; yields the SDK's events, and tells of each of its results when its runner begins."""
        over = False
        while not over and not self._is_cancelled():
            result = Runner.run_streamed(self._agent, self._build_runner_input(), **self._options)
            on_result(result)
            try:
                async with close_on_exit(result.stream_events()) as events:
                    async for event in events:
                        yield event
            except _RestartRunner:
                continue
            over = await (self._finish_cancelled(result) if self._is_cancelled() else self._judge_end(result))

    def _is_cancelled(self) -> bool:
        return self.cancel_mode is not None

    async def _finish_cancelled(self, result: Any) -> bool:
        """The caller has cancelled the run, at once or after its last turn, which is whole then."""
        if self.cancel_mode == "after_turn":
            self._commit_turn(result.to_input_list(mode="normalized"))
            await self._sync_sdk_session()
        return True

    def get_original_agent(self, agent: Agent[Any]) -> Agent[Any]:
        """The caller's agent that one was copied from."""
        return self._agent_wrapper.get_original(agent)

    @property
    def session(self) -> Session:
        """The session of the run."""
        return self._session

    def build_items(self) -> list[Any]:
        """The items that are left."""
        return self._history.view.build_items()

    def _build_metadata(self, items: Sequence[Any]) -> Trajectory:
        asked = [step for step in build_steps(items, agent=self._agent.name) if step.source == "user"]
        prompt = self._agent.instructions
        return Trajectory(
            id=f"run-{uuid.uuid4().hex[:12]}",
            format="event_log",
            task=asked[-1].content if asked else "",
            steps=(),
            tools=self._agent_wrapper.list_tool_specs(),
            system_prompts={self._agent.name: prompt} if isinstance(prompt, str) else {},
        )

    def _build_capabilities(self) -> Capabilities:
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

    def _commit_input(self, items: Sequence[Any]) -> None:
        """Commit what the run begins with; nothing of it is ever taken back."""
        self._history.view.update(items)
        for step in build_steps(items, agent=self._agent.name):
            self._history.commit_step(step, self._agent)
        self._history.fix_steps()

    def _set_options(self, options: Mapping[str, Any]) -> None:
        given = options.get("run_config")
        self._config = RunConfig(**given) if isinstance(given, dict) else given or RunConfig()
        seams = build_guarded_config(
            self._config, self._filter_model_input, self._model_caller, self._get_model
        )
        self._options = {**options, "run_config": seams}

    def _build_runner_input(self) -> Any:
        """What the runner begins with: the items that are left, or the state of a paused run."""
        state, self._paused_state = self._paused_state, None
        return self._history.view.rebase() if state is None else state

    async def _filter_model_input(self, data: CallModelData[Any]) -> ModelInputData:
        """The boundary between turns: commit the last one, do what is to be done, show what is left."""
        self._model_caller.start_turn()
        self._commit_turn(data.model_data.input)
        speaker = self._agent = self._agent_wrapper.wrap_agent(data.agent)
        withheld = len(self._disabled_tools)
        plan = self._session.check_boundary()
        if plan is not None:
            speaker = await self._apply_plan(plan)
        await self._sync_sdk_session()
        self._raise_if_stopped()
        if speaker is not self._agent or len(self._disabled_tools) > withheld:
            self._agent = speaker
            raise _RestartRunner
        return ModelInputData(
            input=self._history.view.build_items(), instructions=data.model_data.instructions
        )

    async def _judge_response(
        self,
        response: ModelResponse,
        call_candidate: Callable[[SampleVariant], Awaitable[ModelResponse]],
        *,
        is_last: bool,
    ) -> JudgedResponse:
        """Judge an answer before any tool runs; what is told then is shown at every later call, too."""
        if is_last:
            self._turn = self._build_step(response)
            return JudgedResponse(response)
        choice = await _sync_async.run_async(
            resolve_turn(self._session, response, self._build_step, lambda one: one), call_candidate
        )
        self._turn = choice.turn
        self._raise_if_stopped()
        if choice.plan is None:
            made = choice.response
            return JudgedResponse(apply_repaired_turn(made, choice.turn) if choice.is_repaired else made)
        texts = await acollect_messages(choice.plan, ask_person=self._ask)
        for text in texts:
            self._history.view.add_guard_text(text)
        return JudgedResponse(response, [{"role": "user", "content": text} for text in texts])

    def _build_step(self, response: ModelResponse) -> Step:
        turn = build_step(response.to_input_items(), agent=self._agent.name)
        return replace(turn, usage=build_usage(response.usage)) if response.usage.requests else turn

    def _get_model(self, name: str) -> Model:
        """The model of a name, as the caller's provider gives it."""
        return self._config.model_provider.get_model(name)

    async def _invoke_tool(self, context: Any, arguments: str, tool: Callable[[], Awaitable[Any]]) -> Any:
        """Let each effect happen once."""
        context.run_config = self._config  # an agent inside of the tool would run with the guard's seams
        given = parse_arguments(arguments)
        if given is None:
            return await tool()  # no arguments, no call: the SDK says so
        claim = self._session.begin_tool(context.tool_name, given)
        try:
            return await arun_tool(self._session, claim, lambda: _call_tool(tool))
        except Exception:
            self._failed_call_ids.add(context.tool_call_id)
            raise

    def _declare_tool(self, tool: str, annotations: dict[str, Any]) -> None:
        """What the server of an MCP tool says of it holds where nothing else was declared."""
        if tool not in self._guard.tools:
            self._session.ledger.declare_tool(tool, from_annotations(annotations))

    def _commit_turn(self, items: Sequence[Any]) -> None:
        goes_on = self._history.view.update(items)
        turn, self._turn = self._turn, None
        if turn is not None:
            self._history.commit_step(add_observations(items, turn, self._failed_call_ids), self._agent)
        if not goes_on:  # a handoff has rewritten the list: nothing before it can be cut
            self._history.fix_steps()
            if self._sdk_session is not None:
                self._sdk_session.rebase(self._history.view.build_items())

    async def _sync_sdk_session(self) -> None:
        """At a boundary: let the caller's session hold what is left."""
        if self._sdk_session is not None:
            await self._sdk_session.sync(self._history.view.build_items())

    async def _judge_end(self, result: Any) -> bool:
        """Whether the run is over: the runner has ended, and the guard accepts that."""
        if result.interruptions:
            return True  # it only paused, for an approval; its last turn is not whole
        self._commit_turn(result.to_input_list(mode="normalized"))  # as the model sees it after handoffs
        plan = await aend_session(self._session)
        if plan is not None:
            self._agent = await self._apply_plan(plan)
        await self._sync_sdk_session()
        self._raise_if_stopped()
        return plan is None

    async def _apply_plan(self, plan: RecoveryPlan) -> Agent[Any]:
        """Make the view agree with a plan that the session has carried out; returns who goes on."""
        speaker = self._agent
        failed = await aundo_effects(self._session, plan)
        for action in plan.actions:
            if isinstance(action, Repair):
                self._history.replace_result(action.step, action.field, action.text)
            elif isinstance(action, Rewind | Restart):
                to_step = action.to_step if isinstance(action, Rewind) else 0
                speaker = self._history.roll_back(to_step, speaker=self._agent)
            elif isinstance(action, DisableTools):
                self._disabled_tools |= set(action.tools)
        for text in await acollect_messages(plan, failed, ask_person=self._ask):
            self._history.view.add_guard_text(text)
        return speaker

    def _raise_if_stopped(self) -> None:
        if self._session.stop_reason is not None:
            raise RunStopped(self._session.stop_reason)


async def _call_tool(tool: Callable[[], Awaitable[Any]]) -> Any:
    return await tool()
