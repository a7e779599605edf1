"""Parser of the requests that LiteLLM sends to a generic guardrail.

Source: LiteLLM's "[BETA] Generic Guardrail API", and the requests of its client in version 1.106.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

from agentguard.errors import InputError

_RUN_ID_FIELD: Final = "agentguard-run"

REQUEST_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["input_type"],
    "properties": {
        "input_type": {"enum": ["request", "response"]},
        "litellm_call_id": {"type": ["string", "null"]},
        "structured_messages": {"type": ["array", "null"], "items": {"type": "object"}},
        "texts": {"type": ["array", "null"], "items": {"type": "string"}},
        "tools": {"type": ["array", "null"], "items": {"type": "object"}},
        "tool_calls": {"type": ["array", "null"], "items": {"type": "object"}},
        "model": {"type": ["string", "null"]},
        "request_headers": {"type": ["object", "null"]},
        "additional_provider_specific_params": {"type": ["object", "null"]},
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailRequest:
    """Guardrail request of LiteLLM.

    Attributes:
        kind: ``request`` or ``response``: the part of the call to judge.
        call_id: LiteLLM's ID of the call, the same for request and response.
        messages: messages of the request; empty for a response and for APIs other than chat.
        tools: tools that the request offers.
        texts: texts of the response.
        tool_calls: tool calls of the response.
        model: model of the request or the response.
        run_id: run that the client names; empty if it names none.
    """

    kind: Literal["request", "response"]
    call_id: str
    messages: Sequence[dict[str, Any]]
    tools: Sequence[dict[str, Any]]
    texts: Sequence[str]
    tool_calls: Sequence[dict[str, Any]]
    model: str
    run_id: str


def parse_guardrail_request(body: bytes) -> GuardrailRequest:
    """Parse a guardrail request. Raises InputError with the name of the invalid field."""
    try:
        data = orjson.loads(body)
    except ValueError:
        raise InputError("the body is not valid JSON", file="the request") from None
    if not isinstance(data, dict) or data.get("input_type") not in ("request", "response"):
        raise InputError("is neither request nor response", file="the request", field="input_type")
    headers = {name.lower(): value for name, value in _get_object(data, "request_headers").items()}
    parameters = _get_object(data, "additional_provider_specific_params")
    run = parameters.get(_RUN_ID_FIELD) or headers.get(_RUN_ID_FIELD)
    return GuardrailRequest(
        kind=data["input_type"],
        call_id=_get_text(data, "litellm_call_id"),
        messages=_get_list(data, "structured_messages", dict),
        tools=_get_list(data, "tools", dict),
        texts=_get_list(data, "texts", str),
        tool_calls=[_parse_tool_call(one) for one in _get_list(data, "tool_calls", dict)],
        model=_get_text(data, "model"),
        run_id=run if isinstance(run, str) and run != "[present]" else "",
    )


def _parse_tool_call(data: dict[str, Any]) -> dict[str, Any]:
    """Convert a tool call into OpenAI's format; LiteLLM leaves fields of streamed calls empty."""
    inner = data.get("function")
    function = inner if isinstance(inner, dict) else {}
    return {
        "id": str(data.get("id") or ""),
        "type": "function",
        "function": {
            "name": str(function.get("name") or ""),
            "arguments": str(function.get("arguments") or ""),
        },
    }


def _get_object(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = data.get(name)
    if value is not None and not isinstance(value, dict):
        raise InputError("is not an object", file="the request", field=name)
    return value or {}


def _get_text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if value is not None and not isinstance(value, str):
        raise InputError("is not a string", file="the request", field=name)
    return value or ""


def _get_list(data: Mapping[str, Any], name: str, kind: type[Any]) -> list[Any]:
    value = data.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, kind) for one in value):
        raise InputError(f"is not a list of {kind.__name__}", file="the request", field=name)
    return value
