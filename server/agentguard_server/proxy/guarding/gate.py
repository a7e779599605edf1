"""Which requests need a verdict before the client sees their answer: those in which it could act on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from agentguard.integrations.exchange.dialect import Dialect

# Where none of these stands, no tool is offered and none was called. An escaped letter might hide one.
_TRACES: Final = (b'"tools"', b'"tool_', b"_call", b"previous_response_id", b"\\u00")

_decode = msgspec.json.Decoder().decode


def may_act(body: bytes) -> bool:
    """Whether a body may offer tools or have calls in it; a look at the bytes, right when it says no."""
    return any(trace in body for trace in _TRACES)


def decoded(body: bytes) -> dict[str, Any] | None:
    """A body as an object; None if it is none. Numbers keep all their digits."""
    try:
        value = _decode(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def acts(dialect: Dialect, body: Mapping[str, Any]) -> bool:
    """Whether a request offers tools, or has calls in its history; it can be guarded."""
    if body.get("tools"):
        return True
    return any(item.get("tool_calls") or dialect.result(item) for item in dialect.items(body))
