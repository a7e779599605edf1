"""Query of the Claude Agent SDK with rollbacks: the guard's hooks, and forks of the SDK's session.

::

    async for message in guard.claude_agent_query("Find a free seat.", options):
        ...

If the guard rolls the run back, a hook ends the agent's process. A new process forks the session at the last
entry before the turn and resumes it with the correction as its prompt. The abandoned session stays on disk.
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

    The caller also receives the messages of turns that the guard rolls back later. The result has the cost
    and the number of turns of the last process.

    Args:
        guard: the guard whose rules apply; set by `Guard.claude_agent_query`.
        prompt: the task.
        options: options of the agent.
        settings: further arguments of `ClaudeAgentHooks`.

    Raises:
        ConfigError: the prompt is a stream.
    """
    if not isinstance(prompt, str):
        raise ConfigError(
            "claude_agent_query: the prompt must be a string, because a rollback may send it again"
        )
    hooks = ClaudeAgentHooks(guard, can_roll_back=True, **settings)
    guarded_options = add_hooks(options, hooks)
    entries = _SessionEntries()
    next_prompt, next_options = prompt, guarded_options
    while True:
        result: ResultMessage | None = None
        async with aclosing(query(prompt=next_prompt, options=next_options)) as messages:
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
        next_prompt, next_options = _resume(rollback, entries, prompt, guarded_options)


def _resume(
    rollback: PendingRollback,
    entries: _SessionEntries,
    prompt: str,
    guarded_options: ClaudeAgentOptions,
) -> tuple[str, ClaudeAgentOptions]:
    """Return the prompt and the options of the process that continues after a rollback."""
    session = rollback.session
    steps = session.run.steps[_FIRST_TURN : rollback.to_step] if rollback.to_step is not None else ()
    entry = entries.find_last([call.id for step in steps for call in step.tool_calls])
    if entry is None:
        next_prompt = f"{prompt}\n\n{rollback.text}"
        if rollback.to_step is None:
            session.commit(Step(index=0, source=Source.USER, agent="user", content=next_prompt))
        return next_prompt, guarded_options
    session_id, entry_id = entry
    return rollback.text, replace(
        guarded_options,
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
            return  # the message of a sub-agent
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
        """Return the IDs of session and entry of the last turn with one of the calls, or None."""
        known = (self._entry_by_call.get(call_id) for call_id in reversed(call_ids))
        return next((entry for entry in known if entry is not None), None)
