"""OpenAI Agents SDK: the guard around its runner.

::

    result = await guard.openai_agents.run(agent, "task")

The SDK's hooks only observe, so the guard takes four other seams: the model (an answer can be refused before
it is anything), the filter of each model call's input (turns that were taken back stay left out of every
later call), the tools (each effect once), and a loop around the runner, since a run that has ended, or that
has to go back to before a handoff, is begun again from the items that are left. Agents are copied for a run,
with their tools and models, and those that they hand off to.

Where the server keeps the history, what was taken back would come back from there; so such runs are not taken
on. The SDK's own sessions are: the guard writes them itself, so that they hold just what is left.
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
from agentguard.integrations.openai_agents.run import AgentsGuardedRun, AskCallback

if TYPE_CHECKING:
    from agentguard.guard import Guard

_SERVER_HISTORY_OPTIONS = ("conversation_id", "previous_response_id", "auto_previous_response_id")


class GuardedState:
    """The state of a guarded run that waits for an approval; all else is the SDK's own ``RunState``.

    Attributes:
        state: the SDK's state.
    """

    def __init__(self, state: Any, run: AgentsGuardedRun) -> None:
        self.state, self._run = state, run

    def _resume(self, options: dict[str, Any]) -> AgentsGuardedRun:
        if self.state is None:
            raise ConfigError("run: this state has been gone on with; a guarded run goes on once")
        self._run.resume(self.state, options)
        self.state = None
        return self._run

    def __getattr__(self, name: str) -> Any:
        return getattr(self.state, name)


class GuardedResult:
    """What came of a guarded run; all else is the SDK's own result of the last run of its runner.

    Attributes:
        result: the SDK's result. Its items still hold turns that were taken back.
    """

    def __init__(self, run: AgentsGuardedRun, result: Any) -> None:
        self.result, self._run = result, run

    @property
    def session(self) -> Session:
        """The guarded run: findings, recoveries, the recorded trajectory."""
        return self._run.session

    @property
    def last_agent(self) -> Agent[Any]:
        """Who spoke last: the caller's agent, and not the copy that ran."""
        return self._run.get_original_agent(self.result.last_agent)

    def to_input_list(self) -> list[Any]:
        """The items of the run without turns that were taken back, to go on from; whole turns alone."""
        return self._run.build_items()

    def to_state(self) -> GuardedState:
        """The state of a run that waits for an approval: approve or reject, and give it to `run` as input."""
        return GuardedState(self.result.to_state(), self._run)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.result, name)


class GuardedRunStream(GuardedResult):
    """A streamed run; it goes on as its events are read."""

    def __init__(self, run: AgentsGuardedRun, start: Callable[[], Awaitable[None]]) -> None:
        super().__init__(run, None)
        self._start = start

    async def stream_events(self) -> AsyncIterator[Any]:
        """The SDK's events, of the runs that took its place after a rollback, too.

        Events of a turn are seen before the guard may take the turn back; an answer that is refused is seen
        up to its first call.

        Raises:
            ConfigError: the events have been read.
            RunStopped: the guard stopped the run.
        """
        if self.result is not None:
            raise ConfigError("run_streamed: the events of a run are read once")
        await self._start()
        async with close_on_exit(self._run.stream(self._set_result)) as events:
            async for event in events:
                if event.type == "agent_updated_stream_event":
                    event = replace(event, new_agent=self._run.get_original_agent(event.new_agent))
                yield event

    def cancel(self, mode: Literal["immediate", "after_turn"] = "immediate") -> None:
        """As ``RunResultStreaming.cancel``; the run is not begun again, and its end is not judged."""
        self._run.cancel_mode = mode
        if self.result is not None:
            self.result.cancel(mode)

    def _set_result(self, result: Any) -> None:
        self.result = result

    def __getattr__(self, name: str) -> Any:
        if self.result is None:
            raise AttributeError(f"there is no {name!r} before stream_events() is read")
        return getattr(self.result, name)


class GuardedRunner:
    """Runs agents under a guard; `Guard.openai_agents` is one."""

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
        """As ``Runner.run``, guarded.

        Args:
            agent: where the run begins; it is not changed.
            input: the task, the items to go on from, or the state of a guarded run that waits.
            ask: called with a question when a person must decide; may be a coroutine function.
            on_run: called with the session of the run when it begins.
            options: of ``Runner.run``; ``max_turns`` counts anew where the runner is begun again.

        Raises:
            ConfigError: the server keeps the history, or the input is none of these.
            RecoveryError: somebody else has written to the session of a turn that is taken back.
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
        """As ``Runner.run_streamed``, guarded; arguments and errors are those of `run`.

        The run goes on as `GuardedStream.stream_events` is read, and raises there.
        """
        return GuardedRunStream(*self._prepare_run(agent, input, ask, on_run, options))

    def run_sync(
        self, agent: Agent[Any], input: str | list[Any] | GuardedState, **options: Any
    ) -> GuardedResult:
        """As `run`, where no event loop is running."""
        return asyncio.run(self.run(agent, input, **options))

    def _prepare_run(
        self,
        agent: Agent[Any],
        input: Any,
        ask: AskCallback | None,
        on_run: Callable[[Session], None] | None,
        options: dict[str, Any],
    ) -> tuple[AgentsGuardedRun, Callable[[], Awaitable[None]]]:
        """The run, and what begins it."""
        for name in _SERVER_HISTORY_OPTIONS:
            if options.get(name):
                raise ConfigError(f"run: {name} keeps turns that are taken back; give the items as input")
        if isinstance(options.get("session"), OpenAIConversationsSession):
            raise ConfigError("run: the server keeps turns that are taken back; give another kind of session")
        if isinstance(input, GuardedState):
            run = input._resume(options)
            return run, _do_nothing
        if not isinstance(input, str | list):
            raise ConfigError(
                "run: the input is neither a text nor a list of items nor the state of a guarded run, which "
                "to_state() of its result gives"
            )
        run = AgentsGuardedRun(self._guard, agent, ask)
        return run, partial(run.start, input, on_run, options)


async def _do_nothing() -> None:
    """For a run that has begun."""


__all__ = ["GuardedResult", "GuardedRunStream", "GuardedRunner", "GuardedState"]
