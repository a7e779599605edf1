"""Messages, system prompt, task and results in the attributes of a span, for all supported conventions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentguard.errors import FormatError
from agentguard.trajectory.formats._content_parts import (
    ContentResult,
    MessageContent,
    flatten_text,
    parse_content,
)
from agentguard.trajectory.formats._langchain_messages import normalize_langchain_message
from agentguard.trajectory.formats._otel.message_search import decode_value, find_messages, has_messages
from agentguard.trajectory.formats._otel.spans import (
    EVENT_NAMES,
    SourceSpan,
    decode_json_text,
    get_list,
    parse_span_arguments,
    unflatten_names,
)
from agentguard.trajectory.model import ToolCall, Usage
from agentguard.trajectory.usage import parse_usage

_DEFAULT_ROLES = {"input": "user", "output": "assistant"}
_RESULT_ROLES = ("tool", "function", "tool-response", "tool_response")
_REASONING_FIELDS = ("reasoning", "reasoning_content")
_MODEL_ITEMS = ("function_call", "reasoning")
_MESSAGE_FIELDS = frozenset(
    {"role", "content", "contents", "parts", "message", "tool_calls", "toolCalls", "refusal", "finish_reason"}
    | {*_REASONING_FIELDS}
)
_STOP_FIELDS = ("finish_reason", "finishReason", "stop_reason")
_TASK_ATTRIBUTES = ("task", "question", "query", "prompt", "input")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanMessage:
    """Chat message, independent of the convention."""

    role: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ContentResult, ...] = ()
    stop_reason: str = ""
    usage: Usage | None = None
    model: str = ""
    unknown_parts: tuple[str, ...] = ()


def extract_messages(span: SourceSpan, key: str) -> tuple[SpanMessage, ...]:
    """Return the input (``"input"``) or output (``"output"``) messages of a model call."""
    role = _DEFAULT_ROLES[key]
    messages = (parse_message(item, role) for item in _collect_items(span, key))
    return tuple(message for message in messages if message is not None)


class PromptParser:
    """Parser of the inputs of successive model calls: messages that two inputs share are parsed once.

    An agent sends its whole history with each call, so parsing all of it takes quadratic time.
    """

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._messages: list[SpanMessage | None] = []

    def extract_messages(self, span: SourceSpan) -> tuple[SpanMessage, ...]:
        """Return the input messages of a model call."""
        items, shared = _collect_items(span, "input"), 0
        for item, previous_item in zip(items, self._items, strict=False):
            if item != previous_item:
                break
            shared += 1
        new_messages = (parse_message(item, _DEFAULT_ROLES["input"]) for item in items[shared:])
        self._items, self._messages = items, [*self._messages[:shared], *new_messages]
        return tuple(message for message in self._messages if message is not None)


def _collect_items(span: SourceSpan, key: str) -> list[Any]:
    """Return the raw messages of a model call."""
    items = next(filter(None, (get_list(source, key) for source in _iter_sources(span))), [])
    if not items:
        items = _collect_event_messages(span, key)
    if not items and key == "output":
        items = _collect_output_fields(span)
    if not items and span.get_value(f"{key}_text") is not None:
        items = find_messages(span.get_value(f"{key}_text"), _DEFAULT_ROLES[key])
    return items


def parse_message(item: Any, role: str) -> SpanMessage | None:
    """Return a raw message of any API; None if it is neither an object nor text.

    Args:
        item: the message; also an item of the Responses API, or a choice with a ``message``.
        role: role of a message without one.
    """
    item = decode_value(item)
    if isinstance(item, Mapping) and any(key.startswith("message.") for key in item):
        item = unflatten_names(item)
    if not isinstance(item, Mapping):
        return SpanMessage(role=role, content=item) if isinstance(item, str) else None
    item = normalize_langchain_message(item) or _unwrap_message(item)
    if "type" in item and _MESSAGE_FIELDS.isdisjoint(item):
        # An item of the Responses API is a part without a message around it.
        is_result = item["type"] == "function_call_output"
        role = "user" if is_result else "assistant" if item["type"] in _MODEL_ITEMS else role
        item = {"role": role, "content": [item]}
    content = _parse_parts(item)
    # Some libraries write the name of an enum member, such as MessageRole.USER.
    role = flatten_text(item.get("role")).rpartition(".")[2].lower() or role
    calls = [*content.calls, *_parse_calls(item, len(content.calls))]
    results, text = content.results, content.text
    is_result = role in _RESULT_ROLES and not results
    if is_result:
        results, text = [_build_result(item, content)], ""
    reasoning = [*content.reasoning, *(flatten_text(item[key]) for key in _REASONING_FIELDS if item.get(key))]
    return SpanMessage(
        role=role,
        content=text or flatten_text(item.get("refusal")),
        reasoning="\n".join(filter(None, reasoning)),
        calls=tuple(calls),
        results=tuple(results),
        stop_reason=next((item[key] for key in _STOP_FIELDS if isinstance(item.get(key), str)), ""),
        usage=parse_usage(item.get("usage")),
        model=item["model"] if isinstance(item.get("model"), str) else "",
        unknown_parts=() if is_result else tuple(content.unknown_parts),
    )


def _iter_sources(span: SourceSpan) -> Iterator[Mapping[str, Any]]:
    yield span.attributes
    for _, attributes in span.events:
        yield attributes


def _collect_event_messages(span: SourceSpan, key: str) -> list[Any]:
    """Return messages that are events of the span, or items of an attribute ``events`` (pydantic-ai)."""
    listed = decode_json_text(span.attributes.get("events"))
    pairs = [*span.events]
    pairs += [
        (event["event.name"], event)
        for event in (listed if isinstance(listed, list) else [])
        if isinstance(event, Mapping) and isinstance(event.get("event.name"), str)
    ]
    return [
        {"role": name.split(".")[1], **attributes} for name, attributes in pairs if name in EVENT_NAMES[key]
    ]


def _collect_output_fields(span: SourceSpan) -> list[Any]:
    """Return the output of a call whose text and tool calls are separate attributes (Vercel AI SDK)."""
    message = {
        "content": span.get_text("output_content"),
        "reasoning": span.get_text("output_reasoning"),
        "tool_calls": decode_json_text(span.get_value("output_calls")),
    }
    return [message] if any(message.values()) else []


def _unwrap_message(item: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = decode_json_text(item.get("message"))
    return {**item, **(normalize_langchain_message(inner) or inner)} if isinstance(inner, Mapping) else item


def _parse_parts(item: Mapping[str, Any]) -> MessageContent:
    parts = next((item[key] for key in ("parts", "contents", "content") if item.get(key)), None)
    parts = decode_json_text(parts) if isinstance(parts, str) and _is_part_list(parts) else parts
    if isinstance(parts, Mapping) and isinstance(parts.get("parts"), list):
        parts = parts["parts"]
    if isinstance(parts, list):
        parts = [_unwrap_part(unflatten_names(part)) for part in parts]
    try:
        return parse_content(parts, "content")
    except FormatError:
        return MessageContent(texts=[flatten_text(parts)], unknown_parts=["malformed content"])


def _is_part_list(text: str) -> bool:
    """Return True for JSON text of typed parts; a message may also consist of other JSON."""
    parts = decode_json_text(text)
    return isinstance(parts, list) and all(isinstance(part, Mapping) and "type" in part for part in parts)


def _unwrap_part(part: Any) -> Any:
    part = decode_json_text(part) if isinstance(part, str) and _is_part_list(f"[{part}]") else part
    if not isinstance(part, Mapping):
        return part if isinstance(part, str) else flatten_text(part)
    inner = part.get("message_content")
    if isinstance(inner, Mapping):
        return inner
    if "type" not in part and isinstance(part.get("content"), str):
        return part["content"]
    return part


def _parse_calls(item: Mapping[str, Any], first: int) -> list[ToolCall]:
    values = decode_json_text(item.get("tool_calls") or item.get("toolCalls"))
    calls = [call for call in values if isinstance(call, Mapping)] if isinstance(values, list) else []
    if isinstance(item.get("function_call"), Mapping):
        calls.append({"function": item["function_call"]})
    calls = [unflatten_names(call) for call in calls]
    return [_parse_call(call.get("tool_call", call), number) for number, call in enumerate(calls, first)]


def _build_result(item: Mapping[str, Any], content: MessageContent) -> ContentResult:
    ids = (item.get(key) for key in ("tool_call_id", "toolCallId", "id"))
    return ContentResult(
        content=content.text,
        call_id=next((id for id in ids if isinstance(id, str) and id), None),
        is_error=True if item.get("status") == "error" or item.get("is_error") is True else None,
        unknown_parts=tuple(content.unknown_parts),
    )


def _parse_call(call: Any, number: int) -> ToolCall:
    call = call if isinstance(call, Mapping) else {}
    inner = call["function"] if isinstance(call.get("function"), Mapping) else call
    key = next((key for key in ("arguments", "input", "args") if key in inner), "arguments")
    arguments, raw = parse_span_arguments(inner.get(key))
    id = next((call[key] for key in ("id", "call_id", "toolCallId") if call.get(key)), None)
    name = next((inner[key] for key in ("name", "toolName") if inner.get(key)), None)
    return ToolCall(
        id=id if isinstance(id, str) and id else f"call_{number}",
        name=name if isinstance(name, str) else "",
        arguments=arguments,
        raw_arguments=raw,
    )


def read_system_prompt(span: SourceSpan) -> str:
    """Return the system prompt: an attribute, or a field of the request in the input."""
    request = decode_value(span.get_value("input_text"))
    field = request.get("system") if isinstance(request, Mapping) else None
    return flatten_text(decode_json_text(span.get_value("system") or field))


def read_stop_reason(span: SourceSpan) -> str:
    """Return the reason for which the model stopped; empty if the span has none."""
    value = decode_value(span.get_value("stop_reason"))
    return flatten_text(value[0] if isinstance(value, list) and value else value)


def read_tool_result(span: SourceSpan) -> ContentResult:
    """Return the result of a tool span: a message of the tool (LangChain), or the value itself."""
    value = decode_value(span.get_value("result"))
    candidates = value if isinstance(value, list) else [value]
    if len(candidates) == 1 and isinstance(candidates[0], Mapping) and has_messages(candidates[0]):
        messages = (parse_message(item, "tool") for item in find_messages(candidates[0], "tool"))
        results = [result for message in messages if message for result in message.results]
        if len(results) == 1:
            return results[0]
    return ContentResult(content=flatten_text(value) if isinstance(value, str) else span.get_text("result"))


def extract_task(span: SourceSpan) -> tuple[str, bool]:
    """Return the task of an agent's span, and True if the span explicitly names it as the task."""
    value = decode_json_text(span.get_value("input_text"))
    if isinstance(value, Mapping):
        task = next((value[key] for key in _TASK_ATTRIBUTES if isinstance(value.get(key), str)), "")
        if task:
            return task, True
    users = [
        message.content
        for message in extract_messages(span, "input")
        if message.role in ("user", "human") and message.content
    ]
    return (users[0] if users else flatten_text(value)), False
