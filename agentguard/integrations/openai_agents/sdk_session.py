"""Writer that keeps a session of the OpenAI Agents SDK equal to the remaining items of a guarded run.

The SDK only appends to a session. Therefore the guard reads and writes the session itself: at each boundary
between turns it removes the rolled back items and adds the new ones. After a crash the session contains
complete turns.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Sequence
from typing import Any

from agents import RunConfig
from agents.memory import Session, SessionSettings

from agentguard.errors import RecoveryError


class SdkSessionWriter:
    """Writer of one run's part of an SDK session.

    Args:
        session: a session of the SDK, or the caller's implementation.
        config: configuration of the run; its session settings and session input callback apply.
    """

    def __init__(self, session: Session, config: RunConfig) -> None:
        self._session, self._config = session, config
        self._first_items: list[Any] = []
        self._written_items: list[Any] = []
        self._run_offset = 0

    async def load(self, new_items: list[Any]) -> list[Any]:
        """Return the input of the run: the session's history and the new items.

        Args:
            new_items: input items of the caller.
        """
        settings = getattr(self._session, "session_settings", None) or SessionSettings()
        limit = settings.resolve(self._config.session_settings).limit
        history = list(
            await _call_maybe_async(self._session.get_items, **({} if limit is None else {"limit": limit}))
        )
        merge = self._config.session_input_callback
        if merge is None:
            items, self._first_items = [*history, *new_items], list(new_items)
        else:
            old, fresh = copy.deepcopy(history), copy.deepcopy(new_items)
            items = list(await _call_maybe_async(merge, list(old), list(fresh)))
            self._first_items = [item for item in items if _is_new(item, old, fresh)]
        self._run_offset = len(items)
        return items

    def rebase(self, items: Sequence[Any]) -> None:
        """Keep the stored items after a handoff has rewritten the list; append later items to them."""
        self._first_items, self._run_offset = list(self._written_items), len(items)

    async def sync(self, run_items: Sequence[Any]) -> None:
        """Make the session equal to the remaining items of the run, which form whole turns.

        Raises:
            RecoveryError: another writer has changed the session.
        """
        target = [*self._first_items, *run_items[self._run_offset :]]
        same = 0
        while same < min(len(target), len(self._written_items)) and target[same] == self._written_items[same]:
            same += 1
        while len(self._written_items) > same:
            await self._pop(self._written_items[-1])
            self._written_items.pop()
        if len(target) > same:
            await _call_maybe_async(self._session.add_items, list(target[same:]))
            self._written_items += copy.deepcopy(target[same:])

    async def _pop(self, expected: Any) -> None:
        popped = await _call_maybe_async(self._session.pop_item)
        if popped is not None and _is_same_item(popped, expected):
            return
        if popped is not None:
            await _call_maybe_async(self._session.add_items, [popped])
        raise RecoveryError(
            "openai-agents: another writer has changed the session, so no turn can be removed from it; "
            "use a separate session for each concurrent run"
        )


def _is_new(item: Any, history: list[Any], new_items: list[Any]) -> bool:
    """Return whether an item from the session input callback is new input, by identity or by content."""
    if any(item is one for one in new_items):
        return True
    return not any(item is one for one in history) and item not in history


def _is_same_item(popped: Any, expected: Any) -> bool:
    """Return whether a popped item is the expected one; a session may add fields to it."""
    fields = json.loads(json.dumps(expected, default=str))
    return isinstance(popped, dict) and all(popped.get(key) == value for key, value in fields.items())


async def _call_maybe_async(method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    result = method(*args, **options)
    return await result if inspect.isawaitable(result) else result
