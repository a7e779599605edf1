"""Spans and the attribute names that define their meaning.

The OpenTelemetry conventions for generative AI have the status "Development". OpenInference and OpenLLMetry
use other names for the same data, and recordings keep old names for years. Every known name is in
`ATTRIBUTE_NAMES`, `ATTRIBUTE_PREFIXES`, `EVENT_NAMES` or `KIND_VALUES`, the newest first, so that a change of
the conventions changes one line. Content is optional in these conventions: an absent or unreadable part is
omitted and never an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agentguard.errors import FormatError
from agentguard.trajectory.formats._content_parts import flatten_text
from agentguard.trajectory.formats._otel.message_search import has_messages
from agentguard.trajectory.model import ToolSpec, Usage
from agentguard.trajectory.safe_json import loads, parse_arguments


class OperationKind(StrEnum):
    """Kind of operation that a span records."""

    LLM = "llm"
    TOOL = "tool"
    AGENT = "agent"
    OTHER = "other"


ATTRIBUTE_NAMES: Mapping[str, tuple[str, ...]] = {
    # Vercel's own name is first: it distinguishes a loop of calls from the calls inside.
    "kind": (
        *("ai.operationId", "openinference.span.kind", "gen_ai.operation.name", "traceloop.span.kind"),
        "llm.request.type",
    ),
    "agent": ("gen_ai.agent.name", "agent.name", "agent_name", "ai.telemetry.functionId"),
    "model": (
        *("gen_ai.response.model", "ai.response.model", "gen_ai.request.model", "ai.model.id"),
        *("llm.model_name", "embedding.model_name"),
    ),
    "prompt_tokens": (
        *("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt"),
        *("ai.usage.inputTokens", "ai.usage.promptTokens"),
    ),
    "completion_tokens": (
        *("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion"),
        *("ai.usage.outputTokens", "ai.usage.completionTokens"),
    ),
    "cached_tokens": (
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_read_input_tokens",
        "gen_ai.usage.details.cache_read_tokens",
        "llm.token_count.prompt_details.cache_read",
        "ai.usage.cachedInputTokens",
    ),
    "cost": ("gen_ai.usage.cost", "gen_ai.cost.total_cost", "llm.cost.total", "operation.cost"),
    "system": ("gen_ai.system_instructions", "system_prompt"),
    "input": ("gen_ai.input.messages", "ai.prompt.messages"),
    "output": ("gen_ai.output.messages",),
    "tools": ("gen_ai.tool.definitions", "gen_ai.request.tools", "ai.prompt.tools"),
    "input_text": ("input.value", "traceloop.entity.input", "ai.prompt", "request_data"),
    "output_text": ("output.value", "traceloop.entity.output", "response_data"),
    "output_content": ("ai.response.text", "ai.result.text", "ai.response.object", "ai.result.object"),
    "output_reasoning": ("ai.response.reasoning",),
    "output_calls": ("ai.response.toolCalls", "ai.result.toolCalls"),
    "stop_reason": ("gen_ai.response.finish_reasons", "ai.response.finishReason", "ai.finishReason"),
    "tool": ("gen_ai.tool.name", "tool.name", "ai.toolCall.name", "traceloop.entity.name"),
    "call_id": ("gen_ai.tool.call.id", "tool_call.id", "tool.call_id", "ai.toolCall.id"),
    "arguments": (
        *("gen_ai.tool.call.arguments", "tool_arguments", "ai.toolCall.args", "ai.toolCall.input"),
        *("gcp.vertex.agent.tool_call_args", "input.value", "tool.parameters", "traceloop.entity.input"),
    ),
    "result": (
        *("gen_ai.tool.call.result", "tool_response", "ai.toolCall.result", "ai.toolCall.output"),
        *("gcp.vertex.agent.tool_response", "output.value", "traceloop.entity.output"),
    ),
    "history": ("pydantic_ai.all_messages", "all_messages_events"),
    "conversation": (
        *("gen_ai.conversation.id", "session.id", "traceloop.association.properties.session_id"),
        "ai.telemetry.metadata.sessionId",
    ),
}
"""Attributes that may contain a field, by our name of the field; the first one present is used."""

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
"""Fields that earlier revisions recorded as span events, one event for each message."""

_MESSAGE_PREFIXES = tuple(f"{prefix}." for prefixes in ATTRIBUTE_PREFIXES.values() for prefix in prefixes)
_MESSAGE_EVENTS = tuple(name for names in EVENT_NAMES.values() for name in names)

KIND_VALUES: Mapping[str, OperationKind] = {
    "chat": OperationKind.LLM,
    "text_completion": OperationKind.LLM,
    "generate_content": OperationKind.LLM,
    "llm": OperationKind.LLM,
    "completion": OperationKind.LLM,
    "execute_tool": OperationKind.TOOL,
    "tool": OperationKind.TOOL,
    "retriever": OperationKind.TOOL,
    "invoke_agent": OperationKind.AGENT,
    "agent": OperationKind.AGENT,
    **dict.fromkeys(("ai.generatetext", "ai.streamtext"), OperationKind.AGENT),
    **dict.fromkeys(("ai.generateobject", "ai.streamobject"), OperationKind.AGENT),
    **dict.fromkeys(("ai.generatetext.dogenerate", "ai.generateobject.dogenerate"), OperationKind.LLM),
    **dict.fromkeys(("ai.streamtext.dostream", "ai.streamobject.dostream"), OperationKind.LLM),
    "ai.toolcall": OperationKind.TOOL,
}

EVALUATION_PREFIXES = ("gen_ai.evaluation.", "eval.", "evaluation.", "score.", "feedback.")
"""Prefixes of attributes that judge the run; they never enter a trajectory."""


_CONSUMED_FIELDS: Mapping[OperationKind, tuple[str, ...]] = {
    OperationKind.LLM: (
        *("model", "prompt_tokens", "completion_tokens", "cached_tokens", "cost", "stop_reason", "tools"),
        *("input", "output", "input_text", "output_text", "output_content", "output_reasoning"),
        "output_calls",
    ),
    OperationKind.TOOL: ("tool", "call_id", "arguments", "result"),
}
"""Fields of a span that its step or observation contains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpan:
    """Span with times in epoch seconds; ``position`` counts the spans of the source from 0."""

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
    def kind(self) -> OperationKind:
        """Kind of the span; a span without a kind is a model call if it names a model."""
        kind_values = [self.attributes[name] for name in ATTRIBUTE_NAMES["kind"] if name in self.attributes]
        for value in kind_values:
            if isinstance(value, str) and value.lower() in KIND_VALUES:
                return KIND_VALUES[value.lower()]
        if kind_values:
            return OperationKind.OTHER
        if "gen_ai.tool.name" in self.attributes:
            return OperationKind.TOOL
        return OperationKind.LLM if self.get_value("model") else OperationKind.OTHER

    def get_text(self, key: str) -> str:
        """Return the field ``key`` of `ATTRIBUTE_NAMES` as text; empty if absent."""
        return flatten_text(self.get_value(key))

    def get_value(self, key: str) -> Any:
        """Return the recorded value of the field ``key`` of `ATTRIBUTE_NAMES`, or None."""
        values = (self.attributes.get(name) for name in ATTRIBUTE_NAMES[key])
        return next((value for value in values if value not in (None, "")), None)

    def describe_failure(self) -> str:
        """Return the recorded failure of the span: its exception, else its status message."""
        for name, attributes in self.events:
            if name == "exception":
                parts = (attributes.get("exception.type"), attributes.get("exception.message"))
                return ": ".join(flatten_text(part) for part in parts if part)
        return self.status


def collect_unmapped(span: SourceSpan) -> dict[str, Any]:
    """Return the attributes without a field in the model, except judgements of the run.

    Messages are dropped too: they are steps of their own.
    """
    kind = span.kind
    consumed_fields = _CONSUMED_FIELDS.get(kind, ())
    consumed = {
        name
        for field in consumed_fields
        for name in (*ATTRIBUTE_NAMES[field], *ATTRIBUTE_PREFIXES.get(field, ()))
    }
    prefixes = (*EVALUATION_PREFIXES, *(_MESSAGE_PREFIXES if kind is OperationKind.LLM else ()))
    unmapped_attributes = {
        name: value
        for name, value in span.attributes.items()
        if name not in consumed and not name.startswith(prefixes) and not has_messages(value)
    }
    ids = {"span_id": span.id, "parent_span_id": span.parent, "span_name": span.name}
    events = [
        {"name": name, "attributes": dict(attributes)}
        for name, attributes in span.events
        if not name.startswith((*EVALUATION_PREFIXES, *_MESSAGE_EVENTS))
    ]
    return {**ids, "attributes": unmapped_attributes, **({"events": events} if events else {}), **span.extra}


def collect_evaluations(spans: Sequence[SourceSpan]) -> dict[str, dict[str, Any]]:
    """Return a mapping of span id to the recorded evaluations of that span."""
    evaluations: dict[str, dict[str, Any]] = {}
    for span in spans:
        span_evaluations = {
            name: value for name, value in span.attributes.items() if name.startswith(EVALUATION_PREFIXES)
        }
        events: dict[str, list[Any]] = {}
        for name, value in span.events:
            if name.startswith(EVALUATION_PREFIXES):
                events.setdefault(name, []).append(dict(value))
        span_evaluations |= {
            name: values if len(values) > 1 else values[0] for name, values in events.items()
        }
        if span_evaluations:
            evaluations.setdefault(span.id, {}).update(span_evaluations)
    return evaluations


def parse_span_tools(span: SourceSpan) -> Iterator[ToolSpec]:
    """Yield the tools that were offered to a model call."""
    for item in get_list(span.attributes, "tools"):
        item = decode_json_text(unflatten_names(item))
        item = decode_json_text(item.get("tool", item)) if isinstance(item, Mapping) else item
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


def parse_span_usage(span: SourceSpan) -> Usage | None:
    """Return tokens and cost of a model call, or None if neither was recorded."""
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
    """Return a tool call's arguments as (object or None, recorded text or None)."""
    return parse_arguments(
        value if isinstance(value, str | dict) else flatten_text(value) or None, "arguments"
    )


def decode_json_text(value: Any) -> Any:
    """Return ``value``, parsed if it is the text of a JSON object or array."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return loads(value)
        except FormatError:
            return value
    return value


def unflatten_attributes(attributes: Mapping[str, Any], prefix: str) -> list[Any]:
    """Rebuild the list that was flattened to ``prefix.0.…``; keys deeper than 12 levels stay unchanged."""
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


def unflatten_names(value: Any) -> Any:
    """Rebuild objects whose names are dotted, such as ``{"message.role": …}``, at any depth."""
    if isinstance(value, list):
        return [unflatten_names(item) for item in value]
    if not isinstance(value, Mapping) or not any("." in key for key in value):
        return value
    (rebuilt,) = unflatten_attributes(
        {f"x.0.{key}": unflatten_names(item) for key, item in value.items()}, "x"
    )
    return rebuilt


def _convert_lists(node: Any) -> Any:
    if not isinstance(node, dict) or not node:
        return node
    if all(key.isdecimal() and len(key) < 10 for key in node):
        return [_convert_lists(node[key]) for key in sorted(node, key=int)]
    return {key: _convert_lists(value) for key, value in node.items()}


def get_list(attributes: Mapping[str, Any], key: str) -> list[Any]:
    """Return the list of the field ``key``, in one attribute or flattened; empty if absent."""
    for name in (*ATTRIBUTE_NAMES[key], *ATTRIBUTE_PREFIXES[key]):
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
