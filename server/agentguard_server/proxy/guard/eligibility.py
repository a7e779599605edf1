"""Which requests need a verdict before the client sees their answer: those in which it could act on it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from agentguard.intercept.api_adapter import ApiAdapter

_RUN_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")
_TOOLS_FIELD: Final = b'"tools"'
_TOOL_HISTORY_MARKS: Final = (b'"tool_', b"_call", b"previous_response_id")
"""What a body has in it whose history has calls, or is the server's."""

_decode = msgspec.json.Decoder().decode


def may_offer_tools(body: bytes, *, may_continue_run: bool) -> bool:
    """Whether a body may offer tools; a look at the bytes, right when it says no.

    Args:
        body: of a request, no name in which is written with escapes.
        going_on: whether it may also go on with a run that is guarded, which it could without tools.
    """
    return _TOOLS_FIELD in body or (may_continue_run and any(trace in body for trace in _TOOL_HISTORY_MARKS))


def parse_run_id(value: str) -> str:
    """The name of a run that a client gave, if it can be one; else, and for ``off``, it has none."""
    return value if value != "off" and _RUN_ID.fullmatch(value) else ""


def decode_body(body: bytes) -> dict[str, Any] | None:
    """A body as an object; None if it is none. Numbers keep all their digits."""
    try:
        value = _decode(body)
    except RecursionError:
        return None
    except ValueError:
        value = _decode_lenient(body)
    return value if isinstance(value, dict) else None


def _decode_lenient(body: bytes) -> Any:
    """What servers may take though it is no JSON: NaN, half of a surrogate pair."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def requires_guard(adapter: ApiAdapter, body: Mapping[str, Any]) -> bool:
    """Whether a request offers tools, or has calls in its history; it can be guarded."""
    if body.get("tools"):
        return True
    return any(item.get("tool_calls") or adapter.is_result(item) for item in adapter.extract_items(body))
