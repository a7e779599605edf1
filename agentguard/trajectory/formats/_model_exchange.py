"""Bodies of requests to model APIs and of their responses, as chat messages.

The supported APIs are Chat Completions, Anthropic messages (also as a list of stream events) and Bedrock
Converse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentguard.errors import FormatError
from agentguard.model_api.stream_assembly import TEXT_DELTAS, assemble_message
from agentguard.trajectory.formats._chat_messages import parse_tool_specs
from agentguard.trajectory.formats._content_parts import parse_content
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import ToolSpec
from agentguard.trajectory.safe_json import dumps, loads

_STREAM_EVENTS = frozenset(
    {"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta"}
    | {"message_stop", "ping"}
)
_SILENT_DELTAS = ("signature_delta",)
_MESSAGE_FIELDS = ("content", "tool_calls", "function_call", "reasoning_content", "refusal")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBody:
    """Request to a model API.

    Attributes:
        messages: the chat messages, without a system prompt that is a field of the body.
        system: that system prompt; empty if the body has no such field.
        tools: the offered tools.
        unknown_parts: types of the parts of the system prompt that could not be read.
    """

    messages: list[Any]
    system: str
    tools: tuple[ToolSpec, ...]
    unknown_parts: tuple[str, ...] = ()


def parse_request_body(node: JsonNode) -> RequestBody:
    """Read the body of a request. Raises FormatError with the field."""
    system = parse_content(node.raw("system"), node.field_path("system"))
    tools = node.node_or("toolConfig").items_or("tools") if "toolConfig" in node else node.items_or("tools")
    specs = [tool["toolSpec"] if isinstance(tool, dict) and "toolSpec" in tool else tool for tool in tools]
    return RequestBody(
        messages=node.items("messages"),
        system=system.text,
        tools=parse_tool_specs(specs, node.field_path("tools")),
        unknown_parts=tuple(system.unknown_parts),
    )


def parse_response_body(value: Any, path: str) -> dict[str, Any] | None:
    """Return the assistant message in the body of a response; None if the body has no message.

    Args:
        value: the parsed body, or the list of the events of a stream.
        path: dotted path of the body, for errors.
    """
    if isinstance(value, list):
        value = assemble_message(value)
    if not isinstance(value, dict):
        return None
    node = JsonNode(value, path)
    if isinstance(value.get("choices"), list) and value["choices"]:
        choice = next(node.nodes("choices"))
        message, stop_reason = choice.node("message").data, choice.raw("finish_reason")
    elif isinstance(value.get("output"), dict) and isinstance(value["output"].get("message"), dict):
        message, stop_reason = value["output"]["message"], value.get("stopReason")
    elif value.get("role") == "assistant" and "content" in value:
        message, stop_reason = value, value.get("stop_reason")
    else:
        return None
    kept = {key: message[key] for key in _MESSAGE_FIELDS if message.get(key) is not None}
    facts = {"stop_reason": stop_reason, "usage": value.get("usage"), "model": value.get("model")}
    return {"role": "assistant", **kept, **{key: fact for key, fact in facts.items() if fact is not None}}


def list_unread_parts(value: Any) -> list[str]:
    """Return the types of the parts of a response's body that `parse_response_body` does not read.

    These are the choices after the first, and events of a stream with another type.
    """
    if isinstance(value, list):
        kinds = (_find_event_type(event) for event in value)
        return [f"stream event {kind}" for kind in kinds if kind not in _STREAM_EVENTS]
    choices = value.get("choices") if isinstance(value, Mapping) else None
    return ["choice"] * (len(choices) - 1) if isinstance(choices, list) and choices else []


def _find_event_type(event: Any) -> str:
    """Return the type of an event of a stream; for a delta of another type, the type of the delta."""
    if not isinstance(event, Mapping):
        return "without a type"
    kind, delta = str(event.get("type") or "without a type"), event.get("delta")
    if kind == "content_block_delta" and isinstance(delta, Mapping):
        inner = str(delta.get("type"))
        return kind if inner in TEXT_DELTAS or inner in _SILENT_DELTAS else inner
    return kind


def extract_error(value: Any) -> str:
    """Return the text of an error body, or of LiteLLM's log of an error; empty if it is not an error."""
    error = value.get("error") or value.get("error_str") if isinstance(value, Mapping) else None
    if isinstance(error, Mapping):
        message = error.get("message")
        return message if isinstance(message, str) and message else dumps(dict(error)).decode()
    return error if isinstance(error, str) else ""


def parse_body(value: Any, path: str) -> Any:
    """Return a body that may be JSON text, and that may be wrapped in ``body``."""
    if isinstance(value, dict) and "messages" not in value and isinstance(value.get("body"), str | dict):
        return parse_body(value["body"], f"{path}.body")
    if not isinstance(value, str):
        return value
    try:
        return loads(value)
    except FormatError as error:
        raise FormatError(error.reason, field=path) from None
