"""Chat messages in the attributes of a span, for all supported conventions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentguard.trajectory.formats._otel.spans import (
    EVENT_NAMES,
    SourceSpan,
    decode_json_text,
    flatten_text,
    get_list,
    parse_span_arguments,
)
from agentguard.trajectory.model import ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanMessage:
    """Chat message, independent of the convention; ``results`` are (call id, text)."""

    role: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[tuple[str | None, str], ...] = ()


def extract_messages(span: SourceSpan, key: str) -> tuple[SpanMessage, ...]:
    """Return the input (``"input"``) or output (``"output"``) messages of a model call."""
    items = next(filter(None, (get_list(source, key) for source in _iter_sources(span))), None)
    if items is None:
        attribute_sets = (attributes for name, attributes in span.events if name in EVENT_NAMES[key])
        roles = (name.split(".")[1] for name, _ in span.events if name in EVENT_NAMES[key])
        items = [{"role": role, **attributes} for role, attributes in zip(roles, attribute_sets, strict=True)]
    if not items and span.get_value(f"{key}_text") is not None:
        items = _parse_value(
            decode_json_text(span.get_value(f"{key}_text")), span.get_text(f"{key}_text"), key
        )
    messages = (_parse_message(item, "assistant" if key == "output" else "user") for item in items)
    return tuple(message for message in messages if message is not None)


def _iter_sources(span: SourceSpan) -> Iterator[Mapping[str, Any]]:
    yield span.attributes
    for _, attributes in span.events:
        yield attributes


def _parse_value(value: Any, text: str, key: str) -> list[Any]:
    """Return the messages in an ``input.value`` or ``output.value``: a request, a response, or plain text."""
    if isinstance(value, Mapping):
        for name in ("messages", "choices", "output"):
            if isinstance(value.get(name), list):
                return list(value[name])
        if "role" in value or "tool_calls" in value:
            return [value]
    if isinstance(value, list) and all(isinstance(item, Mapping) and "role" in item for item in value):
        return value
    return [{"role": "assistant" if key == "output" else "user", "content": text}]


def _parse_message(item: Any, role: str) -> SpanMessage | None:
    if not isinstance(item, Mapping):
        return SpanMessage(role=role, content=item) if isinstance(item, str) else None
    inner = decode_json_text(item.get("message"))
    if isinstance(inner, Mapping):
        item = {**item, **inner}
    parts = next((item[key] for key in ("parts", "contents", "content") if item.get(key)), None)
    parts = decode_json_text(parts) if "parts" in item else parts
    texts, reasoning, calls, results = _parse_parts(parts)
    # Some libraries write the name of an enum member, such as MessageRole.USER.
    role = flatten_text(item.get("role")).rpartition(".")[2].lower() or role
    for number, call in enumerate(_as_items(item.get("tool_calls")), len(calls)):
        calls.append(_parse_call(call.get("tool_call", call), number))
    if role in ("tool", "tool-response", "tool_response") and not results:
        id = item.get("tool_call_id", item.get("id"))
        results, texts = [(id if isinstance(id, str) else None, "\n".join(texts))], []
    reasoning += [flatten_text(item[key]) for key in ("reasoning", "reasoning_content") if item.get(key)]
    return SpanMessage(
        role=role,
        content="\n".join(texts),
        reasoning="\n".join(reasoning),
        calls=tuple(calls),
        results=tuple(results),
    )


def _parse_parts(
    parts: Any,
) -> tuple[list[str], list[str], list[ToolCall], list[tuple[str | None, str]]]:
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    results: list[tuple[str | None, str]] = []
    for part in parts if isinstance(parts, list) else [parts]:
        if isinstance(part, Mapping) and isinstance(part.get("message_content"), Mapping):
            part = part["message_content"]
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in ("tool_call", "tool_use", "function_call"):
            calls.append(_parse_call(part, len(calls)))
        elif kind in ("tool_call_response", "tool_result"):
            id = part.get("id", part.get("tool_use_id"))
            result = next((part[key] for key in ("response", "result", "content") if key in part), None)
            results.append((id if isinstance(id, str) else None, flatten_text(result)))
        elif kind in ("reasoning", "thinking"):
            reasoning.append(flatten_text(part.get("content", part.get("text", part.get("thinking")))))
        elif text := flatten_text(part):
            texts.append(text)
    return texts, reasoning, calls, results


def _parse_call(call: Any, number: int) -> ToolCall:
    call = call if isinstance(call, Mapping) else {}
    inner = call["function"] if isinstance(call.get("function"), Mapping) else call
    arguments, raw = parse_span_arguments(inner.get("arguments", inner.get("input")))
    id = call.get("id", call.get("call_id"))
    name = inner.get("name")
    return ToolCall(
        id=id if isinstance(id, str) and id else f"call_{number}",
        name=name if isinstance(name, str) else "",
        arguments=arguments,
        raw_arguments=raw,
    )


def _as_items(value: Any) -> list[Mapping[str, Any]]:
    value = decode_json_text(value)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
