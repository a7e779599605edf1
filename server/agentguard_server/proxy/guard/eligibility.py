"""Eligibility of requests for the inline guard: those in whose response the client could call tools."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from agentguard.intercept.api_adapter import ApiAdapter

_RUN_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")
_decode = msgspec.json.Decoder().decode


def parse_run_id(value: str) -> str:
    """Return the client's run ID; empty if it is not valid, or ``off``."""
    return value if value != "off" and _RUN_ID.fullmatch(value) else ""


def decode_body(body: bytes) -> dict[str, Any] | None:
    """Decode a body; return None if it is not a JSON object. Numbers keep all their digits."""
    try:
        value = _decode(body)
    except RecursionError:
        return None
    except ValueError:
        value = _decode_lenient(body)
    return value if isinstance(value, dict) else None


def _decode_lenient(body: bytes) -> Any:
    """Decode input that is not valid JSON but that servers may accept: NaN, lone surrogates."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def requires_guard(adapter: ApiAdapter, body: Mapping[str, Any]) -> bool:
    """Return whether a request offers tools or has tool calls in its history."""
    if body.get("tools"):
        return True
    return any(item.get("tool_calls") or adapter.is_result(item) for item in adapter.extract_items(body))
