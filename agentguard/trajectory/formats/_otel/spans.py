"""Spans and the attribute names that tell what they are, in one place.

The OpenTelemetry conventions for generative AI are still marked "Development", and OpenInference and
OpenLLMetry spell the same things their own way; older spellings stay in recordings for years. Every name
agentguard knows is in `NAMES`, `ATTRIBUTE_PREFIXES`, `EVENTS` and `KINDS`, the newest first, so that a change of the
conventions is a change of one line. Content is opt-in in these conventions: a part that is absent or
unreadable is left out, never an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import orjson

from agentguard.errors import FormatError
from agentguard.trajectory._safe_json import loads
from agentguard.trajectory.formats._chat_messages import parse_arguments
from agentguard.trajectory.model import ToolSpec, Usage


class SpanKind(StrEnum):
    """What a span stands for."""

    LLM = "llm"
    TOOL = "tool"
    AGENT = "agent"
    OTHER = "other"


ATTRIBUTE_NAMES: Mapping[str, tuple[str, ...]] = {
    "kind": ("openinference.span.kind", "gen_ai.operation.name", "traceloop.span.kind", "llm.request.type"),
    "agent": ("gen_ai.agent.name", "agent.name", "agent_name"),
    "model": ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name"),
    "prompt_tokens": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt"),
    "completion_tokens": (
        "gen_ai.usage.output_tokens",
        "gen_ai.usage.completion_tokens",
        "llm.token_count.completion",
    ),
    "cached_tokens": (
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_read_input_tokens",
        "llm.token_count.prompt_details.cache_read",
    ),
    "cost": ("gen_ai.usage.cost", "llm.cost.total"),
    "system": ("gen_ai.system_instructions", "system_prompt"),
    "input": ("gen_ai.input.messages",),
    "output": ("gen_ai.output.messages",),
    "tools": ("gen_ai.tool.definitions", "gen_ai.request.tools"),
    "input_text": ("input.value", "traceloop.entity.input"),
    "output_text": ("output.value", "traceloop.entity.output"),
    "tool": ("gen_ai.tool.name", "tool.name", "traceloop.entity.name"),
    "call_id": ("gen_ai.tool.call.id", "tool_call.id", "tool.call_id"),
    "arguments": ("gen_ai.tool.call.arguments", "input.value", "tool.parameters", "traceloop.entity.input"),
    "result": ("gen_ai.tool.call.result", "output.value", "traceloop.entity.output"),
    "conversation": ("gen_ai.conversation.id", "session.id", "traceloop.association.properties.session_id"),
}
"""Our name of a field to the attributes that may hold it, the first that is there wins."""

ATTRIBUTE_PREFIXES: Mapping[str, tuple[str, ...]] = {
    "input": ("llm.input_messages", "gen_ai.prompt"),
    "output": ("llm.output_messages", "gen_ai.completion"),
    "tools": ("llm.tools", "llm.request.functions"),
}
"""Fields that are flattened into attributes such as ``llm.output_messages.0.message.role``."""

EVENT_NAMES: Mapping[str, tuple[str, ...]] = {
    "input": (
        "gen_ai.system.message",
        "gen_ai.user.message",
        "gen_ai.assistant.message",
        "gen_ai.tool.message",
    ),
    "output": ("gen_ai.choice",),
}
"""Fields that earlier revisions recorded as span events, one a message."""

KIND_VALUES: Mapping[str, SpanKind] = {
    "chat": SpanKind.LLM,
    "text_completion": SpanKind.LLM,
    "generate_content": SpanKind.LLM,
    "llm": SpanKind.LLM,
    "completion": SpanKind.LLM,
    "execute_tool": SpanKind.TOOL,
    "tool": SpanKind.TOOL,
    "retriever": SpanKind.TOOL,
    "invoke_agent": SpanKind.AGENT,
    "agent": SpanKind.AGENT,
}

EVALUATION_PREFIXES = ("gen_ai.evaluation.", "eval.", "evaluation.", "score.", "feedback.")
"""Attributes that tell how a run was judged begin like this; they never enter a trajectory."""


_CONSUMED_ATTRIBUTES = {
    *(
        name
        for key in ("model", "prompt_tokens", "completion_tokens", "output")
        for name in ATTRIBUTE_NAMES[key]
    ),
    *("gen_ai.tool.call.result", "gen_ai.tool.call.id"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpan:
    """One span; times in epoch seconds; ``position`` counts the spans of the source from 0."""

    id: str
    parent: str | None
    name: str
    position: int
    start: float | None = None
    end: float | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    error: bool | None = None
    status: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> SpanKind:
        """What the span stands for; one that only names a model is a call of it."""
        told = [self.attributes[name] for name in ATTRIBUTE_NAMES["kind"] if name in self.attributes]
        for value in told:
            if isinstance(value, str) and value.lower() in KIND_VALUES:
                return KIND_VALUES[value.lower()]
        return SpanKind.LLM if not told and self.get_value("model") else SpanKind.OTHER

    def get_text(self, key: str) -> str:
        """The field ``key`` of `NAMES` as text; empty if absent."""
        return flatten_text(self.get_value(key))

    def get_value(self, key: str) -> Any:
        """The field ``key`` of `NAMES` as it was recorded, or None."""
        found = (self.attributes.get(name) for name in ATTRIBUTE_NAMES[key])
        return next((value for value in found if value not in (None, "")), None)

    def describe_failure(self) -> str:
        """What the span says of its failure: the exception it recorded, else its status message."""
        for name, attributes in self.events:
            if name == "exception":
                parts = (attributes.get("exception.type"), attributes.get("exception.message"))
                return ": ".join(flatten_text(part) for part in parts if part)
        return self.status


def collect_unmapped(span: SourceSpan) -> dict[str, Any]:
    """What of a span has no field of its own; nothing that tells how the run was judged."""
    prefixes = (*EVALUATION_PREFIXES, *(f"{prefix}." for prefix in ATTRIBUTE_PREFIXES["output"]))
    rest = {
        name: value
        for name, value in span.attributes.items()
        if name not in _CONSUMED_ATTRIBUTES and not name.startswith(prefixes)
    }
    ids = {"span_id": span.id, "parent_span_id": span.parent, "span_name": span.name}
    events = [
        {"name": name, "attributes": dict(attributes)}
        for name, attributes in span.events
        if not name.startswith(EVALUATION_PREFIXES)
    ]
    return {**ids, "attributes": rest, **({"events": events} if events else {}), **span.extra}


def collect_evaluations(spans: Sequence[SourceSpan]) -> dict[str, dict[str, Any]]:
    """Span id to what was recorded beside it about how well it did."""
    found: dict[str, dict[str, Any]] = {}
    for span in spans:
        told = {
            name: value for name, value in span.attributes.items() if name.startswith(EVALUATION_PREFIXES)
        }
        events: dict[str, list[Any]] = {}
        for name, value in span.events:
            if name.startswith(EVALUATION_PREFIXES):
                events.setdefault(name, []).append(dict(value))
        told |= {name: held if len(held) > 1 else held[0] for name, held in events.items()}
        if told:
            found.setdefault(span.id, {}).update(told)
    return found


def parse_span_tools(span: SourceSpan) -> Iterator[ToolSpec]:
    """The tools a model call was offered."""
    for item in get_list(span.attributes, "tools"):
        item = (
            decode_json_text(item.get("tool", item)) if isinstance(item, Mapping) else decode_json_text(item)
        )
        if isinstance(item, Mapping) and "json_schema" in item:
            item = decode_json_text(item["json_schema"])
        if not isinstance(item, Mapping):
            continue
        inner = item["function"] if isinstance(item.get("function"), Mapping) else item
        schema = decode_json_text(
            inner.get("parameters", inner.get("input_schema", inner.get("inputSchema")))
        )
        if isinstance(inner.get("name"), str):
            yield ToolSpec(
                name=inner["name"],
                description=flatten_text(inner.get("description")),
                parameters=schema if isinstance(schema, dict) else {},
            )


def parse_usage(span: SourceSpan) -> Usage | None:
    """Tokens and cost of a model call, or None if nothing of it was recorded."""
    counts = {
        key: _parse_count(span.get_value(key))
        for key in ("prompt_tokens", "completion_tokens", "cached_tokens")
    }
    cost = span.get_value("cost")
    dollars = float(cost) if isinstance(cost, (int, float)) and abs(cost) < 1e12 else None
    if dollars is None and not any(value is not None for value in counts.values()):
        return None
    return Usage(**counts, cost_usd=dollars)


def parse_span_arguments(value: Any) -> tuple[dict[str, Any] | None, str | None]:
    """A tool call's arguments as (object or None, recorded text or None), whatever they were recorded as."""
    return parse_arguments(
        value if isinstance(value, str | dict) else flatten_text(value) or None, "arguments"
    )


def decode_json_text(value: Any) -> Any:
    """``value``, parsed if it is text of a JSON object or array."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return loads(value)
        except FormatError:
            return value
    return value


def flatten_text(value: Any, depth: int = 8) -> str:
    """Text of a content, however it is nested: a string, parts with text, or anything else as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and depth:
        return "\n".join(filter(None, (flatten_text(item, depth - 1) for item in value)))
    if isinstance(value, Mapping) and depth:
        for key in ("text", "content", "message_content", "message_content.text"):
            if isinstance(value.get(key), (str, Mapping, list)):
                return flatten_text(value[key], depth - 1)
    return orjson.dumps(value).decode()


def unflatten_attributes(attributes: Mapping[str, Any], prefix: str) -> list[Any]:
    """Rebuild the list that was flattened to ``prefix.0.…``; deeper than 12 levels the key stays as it is."""
    tree: dict[str, Any] = {}
    for key, value in attributes.items():
        if key.startswith(f"{prefix}."):
            node, parts = tree, key[len(prefix) + 1 :].split(".", 12)
            for part in parts[:-1]:
                child = node.setdefault(part, {})
                if not isinstance(child, dict):
                    child = node[part] = {"value": child}
                node = child
            node[parts[-1]] = value
    rebuilt = _convert_lists(tree)
    return rebuilt if isinstance(rebuilt, list) else []


def _convert_lists(node: Any) -> Any:
    if not isinstance(node, dict) or not node:
        return node
    if all(key.isdecimal() and len(key) < 10 for key in node):
        return [_convert_lists(node[key]) for key in sorted(node, key=int)]
    return {key: _convert_lists(value) for key, value in node.items()}


def get_list(attributes: Mapping[str, Any], key: str) -> list[Any]:
    """The list recorded under a name of `NAMES`, or flattened under one of `ATTRIBUTE_PREFIXES`.

    Else empty.
    """
    for name in ATTRIBUTE_NAMES[key]:
        value = decode_json_text(attributes.get(name))
        if isinstance(value, list) and value:
            return value
    return next(
        filter(None, (unflatten_attributes(attributes, prefix) for prefix in ATTRIBUTE_PREFIXES[key])), []
    )


def _parse_count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if 0 <= value < 1e15 else None
