"""Bundles and recorded calls of runs that another component recorded, such as the proxy or a framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from agentguard.bundles.bundle import Bundle, RecordedCall, encode_bundle_diagnosis
from agentguard.errors import BundleError, ReplayMismatch
from agentguard.intercept.chat_branch import build_messages
from agentguard.intercept.guarded_apis import GUARDED_APIS
from agentguard.localize.base import Diagnosis
from agentguard.trajectory.model import Source, Trajectory

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


def build_run_bundle(
    run: Trajectory, diagnosis: Diagnosis | None, effects: Mapping[str, str] | None = None
) -> Bundle:
    """Return the bundle of a recorded run, for replays in the mode ``scripted``.

    The answers are the steps of agents as messages of the chat API, and their requests are unknown.

    Args:
        run: the run.
        diagnosis: its diagnosis; without one the bundle has no expectations.
        effects: effect class of each tool by name; the mode ``decisions`` needs them.
    """
    answers = (build_messages(step)[0] for step in run.steps if step.source is Source.AGENT)
    calls = tuple(RecordedCall(name="model", request=None, result=answer) for answer in answers)
    return build_captured_bundle(run, diagnosis, calls, effects or {})


def build_captured_bundle(
    run: Trajectory,
    diagnosis: Diagnosis | None,
    model_calls: tuple[RecordedCall, ...],
    effects: Mapping[str, str],
) -> Bundle:
    """Return the bundle of a run whose tool calls are those of its steps.

    Args:
        run: the run.
        diagnosis: its diagnosis; without one the bundle has no expectations.
        model_calls: recorded calls of the model.
        effects: effect class of each tool by name.
    """
    encoded = {} if diagnosis is None else encode_bundle_diagnosis(diagnosis)
    return Bundle(
        trajectory=run,
        model_calls=model_calls,
        tool_calls=list_tool_calls(run, effects),
        diagnosis=encoded,
        expectations={"verdict": str(encoded["verdict"])} if encoded else {},
    )


def encode_chat_response(name: str, request: Mapping[str, Any], message: Any) -> dict[str, Any]:
    """Return the HTTP response of the chat API with a message.

    Raises:
        ReplayMismatch: the request is not one of the chat API.
    """
    api = GUARDED_APIS["chat"]
    if name != build_exchange_name("POST", api.path_suffix):
        raise ReplayMismatch(f"{name}: the bundle has messages of the chat API, and no response of this API")
    body = request["body"]
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    payload = {"id": "replay", "object": "chat.completion", "created": 0, "model": body.get("model", "")}
    payload["choices"] = [choice]
    if not body.get("stream"):
        return {"status": 200, "headers": {"content-type": _JSON}, "body": payload}
    events = api.adapter.encode_stream(payload, include_usage=False).decode()
    return {"status": 200, "headers": {"content-type": _EVENT_STREAM}, "body": events}


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
