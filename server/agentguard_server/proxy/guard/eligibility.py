"""Which requests need a verdict before the client sees their answer: those in which it could act on it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from agentguard.intercept.api_adapter import ApiAdapter

_NAME: Final = re.compile(r"[\x21-\x7e]{1,128}")
_OFFERED: Final = b'"tools"'
_CALLED: Final = (b'"tool_', b"_call", b"previous_response_id")
"""What a body has in it whose history has calls, or is the server's."""

_decode = msgspec.json.Decoder().decode


def may_offer_tools(body: bytes, *, going_on: bool) -> bool:
    """Whether a body may offer tools; a look at the bytes, right when it says no.

    Args:
        body: of a request, no name in which is written with escapes.
        going_on: whether it may also go on with a run that is guarded, which it could without tools.
    """
    return _OFFERED in body or (going_on and any(trace in body for trace in _CALLED))


def run_name(given: str) -> str:
    """The name of a run that a client gave, if it can be one; else, and for ``off``, it has none."""
    return given if given != "off" and _NAME.fullmatch(given) else ""


def decoded(body: bytes) -> dict[str, Any] | None:
    """A body as an object; None if it is none. Numbers keep all their digits."""
    try:
        value = _decode(body)
    except RecursionError:
        return None
    except ValueError:
        value = _leniently(body)
    return value if isinstance(value, dict) else None


def _leniently(body: bytes) -> Any:
    """What servers may take though it is no JSON: NaN, half of a surrogate pair."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def requires_guard(dialect: ApiAdapter, body: Mapping[str, Any]) -> bool:
    """Whether a request offers tools, or has calls in its history; it can be guarded."""
    if body.get("tools"):
        return True
    return any(item.get("tool_calls") or dialect.result(item) for item in dialect.items(body))
