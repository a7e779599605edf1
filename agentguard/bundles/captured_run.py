"""Recorded calls of a run that another component captured, such as the proxy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from agentguard.bundles.bundle import RecordedCall
from agentguard.errors import BundleError
from agentguard.intercept.registry import GUARDED_APIS
from agentguard.trajectory.model import Trajectory

_EVENT_STREAM: Final = "text/event-stream"
_JSON: Final = "application/json"


def build_exchange_name(method: str, path: str) -> str:
    """Return the name of an HTTP exchange: method and path, without host and base path of a known API."""
    suffixes = (api.path_suffix for api in GUARDED_APIS.values())
    return f"{method} {next((one for one in suffixes if path.endswith(one)), path)}"


def decode_body(content: bytes) -> Any:
    """Return an object or array as data, which the redactor reads by name, and other bodies as text.

    Raises:
        BundleError: the body is not UTF-8 text.
    """
    try:
        if content[:1] in (b"{", b"["):
            return orjson.loads(content)
    except orjson.JSONDecodeError:
        pass
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise BundleError("an HTTP body that is not UTF-8 text cannot be recorded") from None


def build_exchange(api: str, request: bytes, response: bytes) -> RecordedCall:
    """Return the recorded call of a successful exchange.

    Args:
        api: name of the API.
        request: body of the request.
        response: body of the response; empty if it was not captured. A replay then raises an exception of
            the transport.

    Raises:
        BundleError: a body is not UTF-8 text.
    """
    name, data = build_exchange_name("POST", GUARDED_APIS[api].path_suffix), {"body": decode_body(request)}
    if not response:
        reason = "the response was not captured"
        return RecordedCall(name=name, request=data, error_type="RemoteProtocolError", error=reason)
    kind = _JSON if response.lstrip()[:1] == b"{" else _EVENT_STREAM
    result = {"status": 200, "headers": {"content-type": kind}, "body": decode_body(response)}
    return RecordedCall(name=name, request=data, result=result)


def list_tool_calls(run: Trajectory, effects: Mapping[str, str]) -> tuple[RecordedCall, ...]:
    """Return the tool calls of a run with their observations; a call without an observation is left out.

    Args:
        run: the run.
        effects: effect class of each tool by name.
    """
    calls = []
    for step in run.steps:
        results = {one.call_id: one.content for one in step.observations}
        calls += [
            RecordedCall(
                name=call.name,
                request=dict(call.arguments),
                result=results[call.id],
                effect=effects.get(call.name, ""),
            )
            for call in step.tool_calls
            if call.id in results and isinstance(call.arguments, Mapping)
        ]
    return tuple(calls)
