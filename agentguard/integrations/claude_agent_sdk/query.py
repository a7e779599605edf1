"""Query of the Claude Agent SDK with rollbacks: the guard's hooks, and forks of the SDK's session.

::

    async for message in guard.claude_agent_query("Find a free seat.", options):
        ...

If the guard rolls the run back, a hook ends the agent's process. A new process resumes a fork of the session
at the last entry before the turn, and its prompt is the correction. The abandoned session stays on disk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    ResultMessage,
    ToolResultBlock,
    UserMessage,
    query,
)

from agentguard.errors import ConfigError
from agentguard.integrations.claude_agent_sdk.hooks import ClaudeAgentHooks, PendingRollback, add_hooks
from agentguard.trajectory.model import Source, Step

if TYPE_CHECKING:
    from agentguard.guard import Guard

_FIRST_TURN = 1
"""Index of the first turn; step 0 is the task."""


async def query_with_rollback(
    guard: Guard, prompt: str, options: ClaudeAgentOptions | None = None, **settings: Any
) -> AsyncIterator[Any]:
    """Yield the messages of the SDK's ``query``, guarded, with one result at the end.

    Messages of turns that are rolled back later are not recalled. The result has the cost and the turns of
    the last process.

    Args:
        guard: the guard whose rules apply; set by `Guard.claude_agent_query`.
        prompt: the task.
        options: options of the agent.
        settings: arguments of `ClaudeAgentHooks`.

    Raises:
        ConfigError: the prompt is a stream, or the session would not be stored.
    """
    if not isinstance(prompt, str):
        raise ConfigError("claude_agent_query: the prompt must be a text, because a rollback starts it again")
    hooks = ClaudeAgentHooks(guard, can_roll_back=True, **settings)
    given = add_hooks(options, hooks)
    entries = _SessionEntries()
    text, current = prompt, given
    while True:
        result: ResultMessage | None = None
        async with aclosing(query(prompt=text, options=current)) as messages:
            async for message in messages:
                entries.add(message)
                if isinstance(message, ResultMessage):
                    result = message
                else:
                    yield message
        rollback = hooks.take_rollback()
        if rollback is None:
            if result is not None:
                yield result
            return
        text, current = _resume(rollback, entries, prompt, given)


def _resume(
    rollback: PendingRollback,
    entries: _SessionEntries,
    prompt: str,
    given: ClaudeAgentOptions,
) -> tuple[str, ClaudeAgentOptions]:
    """Return the prompt and the options of the process that continues after a rollback."""
    session = rollback.session
    kept = session.run.steps[_FIRST_TURN : rollback.to_step] if rollback.to_step is not None else ()
    entry = entries.find_last([call.id for step in kept for call in step.tool_calls])
    if entry is None:
        text = f"{prompt}\n\n{rollback.text}"
        if rollback.to_step is None:
            session.commit(Step(index=0, source=Source.USER, agent="user", content=text))
        return text, given
    session_id, entry_id = entry
    return rollback.text, replace(
        given,
        resume=session_id,
        resume_session_at=entry_id,
        fork_session=True,
        continue_conversation=False,
        session_id=None,
    )


class _SessionEntries:
    """Last entries of the turns with calls, in the SDK's sessions."""

    def __init__(self) -> None:
        self._session_id = ""
        self._turn_calls: list[str] = []
        self._has_results = False
        self._entry_by_call: dict[str, tuple[str, str]] = {}

    def add(self, message: Any) -> None:
        """Record a message; the results of parallel calls may be several messages."""
        if getattr(message, "parent_tool_use_id", None) is not None:
            return  # of a sub-agent
        if isinstance(message, AssistantMessage):
            self._session_id = message.session_id or self._session_id
            if self._has_results:
                self._turn_calls, self._has_results = [], False
        elif isinstance(message, UserMessage) and message.uuid and isinstance(message.content, list):
            results = [one.tool_use_id for one in message.content if isinstance(one, ToolResultBlock)]
            self._turn_calls += results
            self._has_results = self._has_results or bool(results)
            for call_id in self._turn_calls if results else ():
                self._entry_by_call[call_id] = (self._session_id, message.uuid)

    def find_last(self, call_ids: Sequence[str]) -> tuple[str, str] | None:
        """Return session and entry of the last turn with one of the calls; None if no turn has one."""
        known = (self._entry_by_call.get(call_id) for call_id in reversed(call_ids))
        return next((entry for entry in known if entry is not None), None)


__all__ = ["query_with_rollback"]
