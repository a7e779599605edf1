"""OpenAI Agents SDK: the guard around its runner.

::

    result = await guard.openai_agents.run(agent, "task")

The SDK's hooks only observe, so the guard takes four other seams: the model (an answer can be refused before
it is anything), the filter of each model call's input (turns that were taken back stay left out of every
later call), the tools (each effect once), and a loop around the runner, since a run that has ended, or that
has to go back to before a handoff, is begun again from the items that are left. Agents are copied for a run,
with their tools and models, and those that they hand off to.

Where the SDK's session or the server keeps the history, what was taken back would come back from there; so
such runs are not taken on. Streamed runs are not either: their items are with the caller before a verdict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentguard.errors import ConfigError, MissingExtra
from agentguard.live.session import Session

try:
    from agents import Agent
except ImportError as error:
    raise MissingExtra("The OpenAI Agents SDK", "openai-agents") from error

from agentguard.integrations._openai_agents_run import Ask, GuardedRun

if TYPE_CHECKING:
    from agentguard.guard import Guard

_KEPT_ELSEWHERE = ("session", "conversation_id", "previous_response_id", "auto_previous_response_id")


class GuardedResult:
    """What came of a guarded run; all else is the SDK's own result of the last run of its runner.

    Attributes:
        result: the SDK's result. Its items still hold turns that were taken back.
        session: the guarded run: findings, recoveries, the recorded trajectory.
        last_agent: who spoke last: the caller's agent, and not the copy that ran.
    """

    def __init__(self, result: Any, session: Session, items: list[Any], last_agent: Agent[Any]) -> None:
        self.result, self.session, self.last_agent, self._items = result, session, last_agent, items

    def to_input_list(self) -> list[Any]:
        """The items of the run without turns that were taken back, to go on from."""
        return list(self._items)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.result, name)


class GuardedRunner:
    """Runs agents under a guard; `Guard.openai_agents` is one."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def run(
        self,
        agent: Agent[Any],
        input: str | list[Any],
        *,
        ask: Ask | None = None,
        on_run: Callable[[Session], None] | None = None,
        **options: Any,
    ) -> GuardedResult:
        """As ``Runner.run``, guarded.

        Args:
            agent: where the run begins; it is not changed.
            input: the task, or the items to go on from.
            ask: called with a question when a person must decide; may be a coroutine function.
            on_run: called with the session of the run when it begins.
            options: of ``Runner.run``; ``max_turns`` counts anew where the runner is begun again.

        Raises:
            ConfigError: the history is kept elsewhere, or the input is the state of a paused run.
            RunStopped: the guard stopped the run.
        """
        for name in _KEPT_ELSEWHERE:
            if options.get(name):
                raise ConfigError(f"run: {name} keeps turns that are taken back; give the items as input")
        if not isinstance(input, str | list):
            raise ConfigError("run: the input is neither a text nor a list of items")
        run = GuardedRun(self._guard, agent, ask)
        result, last_agent = await run.go(input, on_run, options)
        return GuardedResult(result, run.session, run.shown(), last_agent)

    def run_sync(self, agent: Agent[Any], input: str | list[Any], **options: Any) -> GuardedResult:
        """As `run`, where no event loop is running."""
        return asyncio.run(self.run(agent, input, **options))


__all__ = ["GuardedResult", "GuardedRunner"]
