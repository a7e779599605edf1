"""Guarded runner of the OpenAI Agents SDK.

::

    result = await guard.openai_agents.run(agent, "task")

The SDK's hooks cannot change a run. Therefore the guard uses four other extension points:

- the model: the guard can reject a response before the SDK acts on it.
- the input filter of model calls: it hides rolled back turns from every later call.
- the tools: the guard executes each effect once.
- a loop around the runner: it restarts the runner from the remaining items after a rejected end, or after a
  rollback past a handoff.

The guard copies the agents for a run, with their tools, their models and the agents that they hand off to.

The guard rejects runs whose history the server stores, because it cannot remove turns there. It supports
other sessions of the SDK: it writes them itself, so that they contain only the remaining items.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from agentguard.errors import ConfigError, MissingExtra
from agentguard.runtime.session import Session

try:
    from agents import Agent, OpenAIConversationsSession
except ImportError as error:
    raise MissingExtra("The OpenAI Agents SDK", "openai-agents") from error

from agentguard.integrations.openai_agents.model_calls import close_on_exit
from agentguard.integrations.openai_agents.run import AgentsGuardedRun
from agentguard.runtime.tool_execution import AskCallback

if TYPE_CHECKING:
    from agentguard.guard import Guard

_SERVER_HISTORY_OPTIONS = ("conversation_id", "previous_response_id", "auto_previous_response_id")


class GuardedState:
    """State of a guarded run that waits for an approval; other attributes are those of ``RunState``.

    Attributes:
        state: the SDK's state.
    """

    def __init__(self, state: Any, run: AgentsGuardedRun) -> None:
        self.state, self._run = state, run

    def _resume(self, options: dict[str, Any]) -> AgentsGuardedRun:
        if self.state is None:
            raise ConfigError(
                "run: this state has been resumed before; a state of a guarded run can be resumed once"
            )
        self._run.resume(self.state, options)
        self.state = None
        return self._run

    def __getattr__(self, name: str) -> Any:
        return getattr(self.state, name)


class GuardedResult:
    """Result of a guarded run; other attributes are those of the SDK's result of the last runner.

    Attributes:
        result: the SDK's result; its items contain the rolled back turns.
    """

    def __init__(self, run: AgentsGuardedRun, result: Any) -> None:
        self.result, self._run = result, run

    @property
    def session(self) -> Session:
        """Return the session, with findings, recoveries and the recorded trajectory."""
        return self._run.session

    @property
    def last_agent(self) -> Agent[Any]:
        """Return the last active agent: the caller's agent, not its copy."""
        return self._run.get_original_agent(self.result.last_agent)

    def to_input_list(self) -> list[Any]:
        """Return the items of the run without rolled back turns, as input of a further run."""
        return self._run.build_items()

    def to_state(self) -> GuardedState:
        """Return the state of a run that waits for an approval; after the decision, pass it to `run`."""
        return GuardedState(self.result.to_state(), self._run)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.result, name)


class GuardedRunStream(GuardedResult):
    """Streamed run; it advances while the caller reads its events."""

    def __init__(self, run: AgentsGuardedRun, start: Callable[[], Awaitable[None]]) -> None:
        super().__init__(run, None)
        self._start = start

    async def stream_events(self) -> AsyncIterator[Any]:
        """Yield the SDK's events, including those of runners that were restarted after a rollback.

        The caller also gets the events of turns that the guard rolls back later, and the events of rejected
        responses up to the first call.

        Raises:
            ConfigError: the caller has read the events before.
            RunStopped: the guard stopped the run.
        """
        if self.result is not None:
            raise ConfigError("run_streamed: the events of a run can be read once")
        await self._start()
        async with close_on_exit(self._run.stream(self._set_result)) as events:
            async for event in events:
                if event.type == "agent_updated_stream_event":
                    event = replace(event, new_agent=self._run.get_original_agent(event.new_agent))
                yield event

    def cancel(self, mode: Literal["immediate", "after_turn"] = "immediate") -> None:
        """Cancel the run like ``RunResultStreaming.cancel``; the guard neither restarts nor judges it."""
        self._run.cancel_mode = mode
        if self.result is not None:
            self.result.cancel(mode)

    def _set_result(self, result: Any) -> None:
        self.result = result

    def __getattr__(self, name: str) -> Any:
        if self.result is None:
            raise AttributeError(f"the result has no {name!r} before the first event of stream_events()")
        return getattr(self.result, name)


class GuardedRunner:
    """Runner of guarded agents; see `Guard.openai_agents`."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def run(
        self,
        agent: Agent[Any],
        input: str | list[Any] | GuardedState,
        *,
        ask: AskCallback | None = None,
        on_run: Callable[[Session], None] | None = None,
        **options: Any,
    ) -> GuardedResult:
        """Run an agent like ``Runner.run``, guarded.

        Args:
            agent: the agent that the run starts with; it is not changed.
            input: the task, the items to continue from, or the state of a guarded run.
            ask: called with a question when a person must decide; may be a coroutine function.
            on_run: called with the session of the run when the run begins.
            options: options of ``Runner.run``; ``max_turns`` applies to each restart of the runner.

        Raises:
            ConfigError: the server stores the history, or the input has an unsupported type.
            RecoveryError: another writer has changed the SDK session of a turn that is rolled back.
            RunStopped: the guard stopped the run.
        """
        run, begin = self._prepare_run(agent, input, ask, on_run, options)
        await begin()
        return GuardedResult(run, await run.run())

    def run_streamed(
        self,
        agent: Agent[Any],
        input: str | list[Any] | GuardedState,
        *,
        ask: AskCallback | None = None,
        on_run: Callable[[Session], None] | None = None,
        **options: Any,
    ) -> GuardedRunStream:
        """Run an agent like ``Runner.run_streamed``, guarded; arguments and errors are those of `run`.

        The run advances, and raises its errors, while the caller reads `GuardedRunStream.stream_events`.
        """
        return GuardedRunStream(*self._prepare_run(agent, input, ask, on_run, options))

    def run_sync(
        self, agent: Agent[Any], input: str | list[Any] | GuardedState, **options: Any
    ) -> GuardedResult:
        """Run like `run`; no event loop may be running."""
        return asyncio.run(self.run(agent, input, **options))

    def _prepare_run(
        self,
        agent: Agent[Any],
        input: Any,
        ask: AskCallback | None,
        on_run: Callable[[Session], None] | None,
        options: dict[str, Any],
    ) -> tuple[AgentsGuardedRun, Callable[[], Awaitable[None]]]:
        """Return the run and the function that starts it."""
        for name in _SERVER_HISTORY_OPTIONS:
            if options.get(name):
                raise ConfigError(
                    f"run: with {name} the server stores rolled back turns; pass the items as input"
                )
        if isinstance(options.get("session"), OpenAIConversationsSession):
            raise ConfigError(
                "run: OpenAIConversationsSession stores rolled back turns on the server; pass another session"
            )
        if isinstance(input, GuardedState):
            run = input._resume(options)
            return run, _do_nothing
        if not isinstance(input, str | list):
            raise ConfigError(
                "run: the input must be a text, a list of items, or the state of a guarded run "
                "(to_state() of its result)"
            )
        run = AgentsGuardedRun(self._guard, agent, ask)
        return run, partial(run.start, input, on_run, options)


async def _do_nothing() -> None:
    """Do nothing: a resumed run has begun before."""
