"""Guarded run of the OpenAI Agents SDK: it commits turns to the session and applies plans to the items."""

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
from agentguard.integrations.openai_agents.agent_wrapper import (
    AgentWrapper,
    build_guarded_config,
    find_model_name,
)
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
from agentguard.recover.actions import DisableTools, Repair, Restart, Rewind, SampleVariant
from agentguard.recover.capabilities import MODEL_LOOP_CAPABILITIES, Capabilities
from agentguard.recover.plan import RecoveryPlan
from agentguard.recover.tool_effects import from_annotations
from agentguard.runtime.session import Session, aend_session, resolve_turn
from agentguard.runtime.tool_execution import AskCallback, acollect_messages, arun_tool, aundo_effects
from agentguard.runtime.tool_timeout import ToolTimeout
from agentguard.trajectory.model import Step, Trajectory

if TYPE_CHECKING:
    from agentguard.guard import Guard


class _RestartRunner(Exception):
    """Request to restart the runner, which cannot change its agent and tools."""


class AgentsGuardedRun:
    """Guarded run.

    Args:
        guard: the guard whose rules apply.
        agent: the agent that the run starts with.
        ask: called with a question when a person must decide.

    Attributes:
        cancel_mode: mode of the cancellation of a streamed run; None until the caller cancels it.
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
        """Start the session and commit the input; ``options`` are those of ``Runner.run``."""
        items = [{"role": "user", "content": input}] if isinstance(input, str) else list(input)
        self._set_options(options)
        sdk_session = self._options.pop("session", None)
        if sdk_session is not None:
            self._sdk_session = SdkSessionWriter(sdk_session, self._config)
            items = await self._sdk_session.load(items)
        self._session = self._guard.session(self._build_metadata(items), self._build_capabilities())
        self._history = RunHistory(self._session)
        if on_run is not None:
            on_run(self._session)
        self._commit_input(items)

    def resume(self, state: Any, options: Mapping[str, Any]) -> None:
        """Resume a run that waits for an approval, from the SDK's state of the run."""
        self._set_options(options)
        self._options.pop("session", None)  # the SDK session of the start remains in use
        self._paused_state = state

    async def run(self) -> Any:
        """Run until the end or until the run waits for an approval; return the SDK's last result."""
        while True:
            try:
                result = await Runner.run(self._agent, self._build_runner_input(), **self._options)
            except _RestartRunner:
                continue
            if await self._judge_end(result):
                return result

    async def stream(self, on_result: Callable[[Any], None]) -> AsyncIterator[Any]:
        """Run like `run`; yield the SDK's events, and call ``on_result`` with the result of each runner."""
        is_over = False
        while not is_over and not self._is_cancelled():
            result = Runner.run_streamed(self._agent, self._build_runner_input(), **self._options)
            on_result(result)
            try:
                async with close_on_exit(result.stream_events()) as events:
                    async for event in events:
                        yield event
            except _RestartRunner:
                continue
            is_over = await (
                self._finish_cancelled(result) if self._is_cancelled() else self._judge_end(result)
            )

    def _is_cancelled(self) -> bool:
        return self.cancel_mode is not None

    async def _finish_cancelled(self, result: Any) -> bool:
        """Finish a cancelled run; with ``after_turn``, commit the last turn, which is complete."""
        if self.cancel_mode == "after_turn":
            self._commit_turn(result.to_input_list(mode="normalized"))
            await self._sync_sdk_session()
        return True

    def get_original_agent(self, agent: Agent[Any]) -> Agent[Any]:
        """Return the caller's agent that a copy was made from."""
        return self._agent_wrapper.get_original(agent)

    @property
    def session(self) -> Session:
        """Return the session of the run."""
        return self._session

    def build_items(self) -> list[Any]:
        """Return the items without turns that were rolled back."""
        return self._history.view.build_items()

    def _build_metadata(self, items: Sequence[Any]) -> Trajectory:
        prompts = [step for step in build_steps(items, agent=self._agent.name) if step.source == "user"]
        instructions = self._agent.instructions
        return Trajectory(
            id=f"run-{uuid.uuid4().hex[:12]}",
            format="event_log",
            task=prompts[-1].content if prompts else "",
            steps=(),
            tools=self._agent_wrapper.list_tool_specs(),
            system_prompts={self._agent.name: instructions} if isinstance(instructions, str) else {},
        )

    def _build_capabilities(self) -> Capabilities:
        return replace(MODEL_LOOP_CAPABILITIES, escalate=self._ask is not None)

    def _commit_input(self, items: Sequence[Any]) -> None:
        """Commit the input of the run; a rollback never removes it."""
        self._history.view.update(items)
        for step in build_steps(items, agent=self._agent.name):
            self._history.commit_step(step, self._agent)
        self._history.fix_steps()

    def _set_options(self, options: Mapping[str, Any]) -> None:
        config = options.get("run_config")
        self._config = RunConfig(**config) if isinstance(config, dict) else config or RunConfig()
        guarded_config = build_guarded_config(
            self._config, self._filter_model_input, self._model_caller, self._get_model
        )
        self._options = {**options, "run_config": guarded_config}

    def _build_runner_input(self) -> Any:
        """Return the input of the runner: the remaining items, or the state of a paused run."""
        state, self._paused_state = self._paused_state, None
        return self._history.view.rebase() if state is None else state

    async def _filter_model_input(self, data: CallModelData[Any]) -> ModelInputData:
        """Handle the boundary between turns: commit the last turn, apply a plan, and return the items."""
        self._model_caller.start_turn()
        self._commit_turn(data.model_data.input)
        speaker = self._agent = self._agent_wrapper.wrap_agent(data.agent)
        disabled_count = len(self._disabled_tools)
        plan = self._session.check_boundary()
        if plan is not None:
            speaker = await self._apply_plan(plan)
        await self._sync_sdk_session()
        self._raise_if_stopped()
        if speaker is not self._agent or len(self._disabled_tools) > disabled_count:
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
        """Judge a response before any tool runs; add the guard's messages to all later model calls."""
        if is_last:
            self._turn = self._build_step(response)
            return JudgedResponse(response)
        choice = await _sync_async.run_async(
            resolve_turn(self._session, response, self._build_step, lambda one: one), call_candidate
        )
        self._turn = choice.turn
        self._raise_if_stopped()
        if choice.plan is None:
            accepted = choice.response
            if choice.is_repaired:
                accepted = apply_repaired_turn(accepted, choice.turn)
            return JudgedResponse(accepted)
        texts = await acollect_messages(self._session, choice.plan, ask_person=self._ask)
        for text in texts:
            self._history.view.add_guard_text(text)
        return JudgedResponse(response, [{"role": "user", "content": text} for text in texts])

    def _build_step(self, response: ModelResponse) -> Step:
        turn = build_step(response.to_input_items(), agent=self._agent.name)
        usage = build_usage(response.usage) if response.usage.requests else None
        return turn.with_usage(usage, find_model_name(self._config.model or self._agent.model))

    def _get_model(self, name: str) -> Model:
        """Return the model with this name from the caller's model provider."""
        return self._config.model_provider.get_model(name)

    async def _invoke_tool(self, context: Any, arguments: str, tool: Callable[[], Awaitable[Any]]) -> Any:
        """Invoke a tool through the effect ledger, so that each effect happens once."""
        context.run_config = self._config  # without the guard's hooks, for an agent inside the tool
        parsed = parse_arguments(arguments)
        if parsed is None:
            return await tool()  # the SDK reports malformed arguments
        claim = self._session.begin_tool(context.tool_name, parsed)
        try:
            return await arun_tool(self._session, claim, lambda: _call_tool(tool))
        except ToolTimeout as error:  # an exception would end the run
            self._failed_call_ids.add(context.tool_call_id)
            return str(error)
        except Exception:
            self._failed_call_ids.add(context.tool_call_id)
            raise

    def _declare_tool(self, tool: str, annotations: dict[str, Any]) -> None:
        """Declare an MCP tool by its annotations; the guard's own declarations take precedence."""
        if tool not in self._guard.tools:
            self._session.ledger.declare_tool(tool, from_annotations(annotations))

    def _commit_turn(self, items: Sequence[Any]) -> None:
        is_extended = self._history.view.update(items)
        turn, self._turn = self._turn, None
        if turn is not None:
            self._history.commit_step(add_observations(items, turn, self._failed_call_ids), self._agent)
        if not is_extended:  # a handoff has rewritten the list: earlier steps cannot be rolled back
            self._history.fix_steps()
            if self._sdk_session is not None:
                self._sdk_session.rebase(self._history.view.build_items())

    async def _sync_sdk_session(self) -> None:
        """Write the remaining items to the caller's SDK session."""
        if self._sdk_session is not None:
            await self._sdk_session.sync(self._history.view.build_items())

    async def _judge_end(self, result: Any) -> bool:
        """Return True if the run is over: it waits for an approval, or the guard accepts its end."""
        if result.interruptions:
            return True  # the last turn is incomplete until the approval
        # The normalized form is the input of the model after handoffs.
        self._commit_turn(result.to_input_list(mode="normalized"))
        plan = await aend_session(self._session)
        if plan is not None:
            self._agent = await self._apply_plan(plan)
        await self._sync_sdk_session()
        self._raise_if_stopped()
        return plan is None

    async def _apply_plan(self, plan: RecoveryPlan) -> Agent[Any]:
        """Apply a plan that the session has executed to the view; return the agent that continues."""
        speaker = self._agent
        failed = await aundo_effects(self._session, plan)
        for action in plan.actions:
            if isinstance(action, Repair):
                self._history.replace_result(action)
            elif isinstance(action, Rewind | Restart):
                to_step = action.to_step if isinstance(action, Rewind) else 0
                speaker = self._history.roll_back(to_step, speaker=self._agent)
            elif isinstance(action, DisableTools):
                self._disabled_tools |= set(action.tools)
        for text in await acollect_messages(self._session, plan, failed, ask_person=self._ask):
            self._history.view.add_guard_text(text)
        return speaker

    def _raise_if_stopped(self) -> None:
        if self._session.stop_reason is not None:
            raise RunStopped(self._session.stop_reason)


async def _call_tool(tool: Callable[[], Awaitable[Any]]) -> Any:
    return await tool()
