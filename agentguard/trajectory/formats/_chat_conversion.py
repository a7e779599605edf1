"""Conversion of other messages to the chat messages that `parse_chat` reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def build_chat_call(id: Any, name: str, arguments: Any, **extra: Any) -> dict[str, Any]:
    """Return a tool call of Chat Completions; an empty id is omitted, so that results answer in order."""
    call = {"id": id or None, "function": drop_none({"name": name, "arguments": arguments}), **extra}
    return drop_none(call)


def drop_none(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {key: value for key, value in data.items() if value is not None}
