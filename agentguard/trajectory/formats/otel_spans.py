"""Lists of spans that are not OTLP: Phoenix, console exporters of OpenTelemetry, Logfire, OpenAI Agents.

Sources: Phoenix's ``/v1/projects/{id}/spans`` and ``get_spans_dataframe`` (JSON, JSON Lines, Parquet),
``ReadableSpan.to_json`` of OpenTelemetry's SDKs, rows of Logfire's query API, ``trace.span`` objects of the
OpenAI Agents SDK. Attributes may be flat, nested, or columns (``attributes.llm.input_messages``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agentguard.errors import FormatError
from agentguard.trajectory.formats._content_parts import flatten_text
from agentguard.trajectory.formats._otel.message_search import decode_value
from agentguard.trajectory.formats._otel.spans import ATTRIBUTE_NAMES, ATTRIBUTE_PREFIXES, SourceSpan
from agentguard.trajectory.formats._otel.trace_collector import TraceCollector
from agentguard.trajectory.formats.base import SourceItem, UnreadableRecord
from agentguard.trajectory.json_node import JsonNode, parse_timestamp
from agentguard.trajectory.model import Record
from agentguard.trajectory.usage import parse_usage

_TRACE_ID = ("context.trace_id", "trace_id", "traceId", "context.traceId")
_SPAN_ID = ("context.span_id", "span_id", "spanId", "context.spanId", "id")
_PARENT_ID = ("parent_id", "parent_span_id", "parentSpanId", "parentSpanContext.spanId", "parentId")
_NAME = ("name", "span_name", "span_data.name")
_START = ("start_time", "startTime", "start_timestamp", "startTimeUnixNano", "started_at", "timestamp")
_END = ("end_time", "endTime", "end_timestamp", "endTimeUnixNano", "ended_at")
_STATUS = ("status_code", "status.status_code", "otel_status_code", "status.code")
_MESSAGE = (
    *("status_message", "status.description", "status.message", "otel_status_message", "exception_message"),
    "error.message",
)
_ERRORS = ("ERROR", "STATUSCODE.ERROR", "STATUS_CODE_ERROR", "2")
_OK = ("OK", "STATUSCODE.OK", "STATUS_CODE_OK", "1")
_KINDS = ("LLM", "TOOL", "AGENT", "CHAIN", "RETRIEVER", "EMBEDDING", "RERANKER", "GUARDRAIL", "EVALUATOR")
_COLUMN_PREFIX = "attributes."
_KNOWN_NAMES = frozenset(
    name for table in (ATTRIBUTE_NAMES, ATTRIBUTE_PREFIXES) for names in table.values() for name in names
)


class OtelSpans:
    """Importer of lists of spans."""

    name = "otel_spans"
    summary = "Spans of Phoenix, OpenTelemetry SDKs, Logfire and OpenAI Agents (JSON, Parquet)"

    def score_match(self, value: Any) -> float:
        """Return a positive score for a span with the ids of its trace and itself, or a page of spans."""
        if not isinstance(value, Mapping):
            return 0.0
        if value.get("object") in ("trace.span", "trace"):
            return 0.97
        if isinstance(value.get("data"), list):
            return max((self.score_match(row) for row in value["data"][:3]), default=0.0)
        ids = [_find(value, names) for names in (_TRACE_ID, _SPAN_ID[:-1])]
        if not all(isinstance(id, str) and id for id in ids):
            ids = [value.get(key) for key in ("traceId", "id", "kind", "duration")]
        return 0.96 if None not in ids and _find(value, _START) is not None else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the runs of a page of spans, or the run of a span."""
        traces = TraceCollector(self.name)
        _add_spans(traces, JsonNode.from_value(value), name)
        yield from traces.build_records()

    def parse_sequence(
        self, items: Iterator[SourceItem], *, name: str
    ) -> Iterator[Record | UnreadableRecord]:
        """Yield a run for each trace; the spans may be in any order."""
        traces = TraceCollector(self.name)
        return traces.read_sequence(items, lambda value: _add_spans(traces, JsonNode.from_value(value), name))


def _add_spans(traces: TraceCollector, node: JsonNode, name: str) -> None:
    """Add the spans of a page or one span; if a span is malformed, add none of them."""
    if node.raw("object") == "trace":  # The trace object of OpenAI Agents has no content.
        return
    rows = list(node.nodes("data")) if isinstance(node.raw("data"), list) else [node]
    parsed_spans = [_parse_span(row, traces.count + index) for index, row in enumerate(rows)]
    for row, span in zip(rows, parsed_spans, strict=True):
        traces.add_span(_find_text(row, _TRACE_ID) or name, span, _read_resource(row))


def _parse_span(node: JsonNode, position: int) -> SourceSpan:
    id = _find_text(node, _SPAN_ID)
    if not id:
        raise FormatError("missing", field=node.field_path("span_id"))
    status = _find_text(node, _STATUS).upper()
    is_error = status in _ERRORS or node.raw("is_exception") is True or bool(node.raw("error"))
    start = _parse_time(_find(node.data, _START))
    end = _parse_time(_find(node.data, _END))
    return SourceSpan(
        id=id,
        parent=_find_text(node, _PARENT_ID) or None,
        name=_find_text(node, _NAME),
        position=position,
        start=start,
        end=end,
        attributes=_collect_attributes(node),
        events=tuple(_read_events(node)),
        error=True if is_error else False if status in _OK else None,
        status=_find_text(node, _MESSAGE),
    )


def _find(data: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """Return the first value among names, whose dots are part of a column's name or of a path."""
    for name in names:
        if (value := data.get(name)) is not None:
            return value
        head, _, tail = name.partition(".")
        inner = data.get(head)
        if tail and isinstance(inner, Mapping) and inner.get(tail) is not None:
            return inner[tail]
    return None


def _find_text(node: JsonNode, names: tuple[str, ...]) -> str:
    value = _find(node.data, names)
    return str(value).removeprefix("0x") if isinstance(value, str | int) else ""


def _parse_time(value: Any) -> float | None:
    if isinstance(value, list) and len(value) == 2:  # seconds and nanoseconds (OpenTelemetry for JavaScript)
        seconds, nanoseconds = (float(part) if isinstance(part, int) else 0.0 for part in value)
        return parse_timestamp(seconds + nanoseconds / 1e9)
    return parse_timestamp(value)


def _read_events(node: JsonNode) -> Iterator[tuple[str, Mapping[str, Any]]]:
    events = decode_value(node.raw("events") or node.raw("otel_events"))
    for event in events if isinstance(events, list) else []:
        if isinstance(event, Mapping):
            name = flatten_text(event.get("name", event.get("event_name")))
            attributes = event.get("attributes", event)
            yield name, attributes if isinstance(attributes, Mapping) else {}


def _read_resource(node: JsonNode) -> Mapping[str, Any]:
    resource = node.raw("resource")
    attributes = resource.get("attributes") if isinstance(resource, Mapping) else None
    return attributes if isinstance(attributes, Mapping) else {}


def _collect_attributes(node: JsonNode) -> dict[str, Any]:
    recorded = decode_value(node.raw("attributes"))
    attributes = _flatten(recorded) if isinstance(recorded, Mapping) else {}
    for name, value in node.data.items():
        if name.startswith(_COLUMN_PREFIX) and value is not None:
            attributes |= _flatten({name.removeprefix(_COLUMN_PREFIX): value})
    attributes |= _read_span_data(node.raw("span_data"))
    kind = node.raw("span_kind")
    if isinstance(kind, str) and kind.upper() in _KINDS:
        attributes.setdefault("openinference.span.kind", kind.upper())
    return attributes


def _flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested attributes under dotted names; a known name keeps its object."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, Mapping) and name not in _KNOWN_NAMES:
            flat |= _flatten(item, f"{name}.")
        elif item is not None:
            flat[name] = item
    return flat


def _read_span_data(value: Any) -> dict[str, Any]:
    """Return attributes for ``span_data``; empty if it is absent or of an unknown type."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or not isinstance(kind, str) or kind not in _READERS:
        return {}
    attributes = _READERS[kind](value)
    return {name: item for name, item in attributes.items() if item not in (None, "", [], {})}


def _read_model_call(data: Mapping[str, Any]) -> dict[str, Any]:
    response = data.get("response")
    response = response if isinstance(response, Mapping) else {}
    usage = parse_usage(data.get("usage") or response.get("usage"))
    return {
        "openinference.span.kind": "LLM",
        "gen_ai.response.model": data.get("model") or response.get("model"),
        "gen_ai.response.id": data.get("response_id"),
        "input.value": data.get("input"),
        "output.value": data.get("output") or response.get("output"),
        "gen_ai.usage.input_tokens": usage.prompt_tokens if usage else None,
        "gen_ai.usage.output_tokens": usage.completion_tokens if usage else None,
    }


def _read_tool_call(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "openinference.span.kind": "TOOL",
        "gen_ai.tool.name": data.get("name"),
        "gen_ai.tool.call.arguments": data.get("input"),
        "gen_ai.tool.call.result": data.get("output"),
    }


def _read_agent(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "openinference.span.kind": "AGENT",
        "gen_ai.agent.name": data.get("name"),
        "agent.data": dict(data),
    }


def _read_other(data: Mapping[str, Any]) -> dict[str, Any]:
    return {"openinference.span.kind": "CHAIN", "span_data": dict(data)}


_READERS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    **dict.fromkeys(("generation", "response"), _read_model_call),
    "function": _read_tool_call,
    "agent": _read_agent,
    **dict.fromkeys(("handoff", "guardrail", "custom", "mcp_tools", "task", "turn"), _read_other),
}


FORMAT = OtelSpans()
