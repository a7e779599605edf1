"""Task lists that agents keep by a tool call, such as ``TodoWrite``, ``update_plan`` or ``write_todos``."""

from __future__ import annotations

from collections.abc import Mapping

from agentguard.trajectory.model import ToolCall

_OPEN_STATUSES = frozenset({"pending", "in_progress", "todo", "open", "not_started"})
_CLOSED_STATUSES = frozenset({"completed", "complete", "done", "cancelled", "canceled", "skipped"})
_MAX_ITEMS = 100


def count_open_items(call: ToolCall) -> int | None:
    """Return the number of open items if the arguments are a task list, else None.

    A task list is an array of objects, each with a known status of a task.
    """
    for value in (call.arguments or {}).values():
        if isinstance(value, list) and 0 < len(value) <= _MAX_ITEMS:
            statuses = [_read_status(item) for item in value]
            if all(status in _OPEN_STATUSES or status in _CLOSED_STATUSES for status in statuses):
                return sum(status in _OPEN_STATUSES for status in statuses)
    return None


def _read_status(item: object) -> str:
    status = item.get("status") if isinstance(item, Mapping) else None
    return status.lower().replace("-", "_").replace(" ", "_") if isinstance(status, str) else ""
