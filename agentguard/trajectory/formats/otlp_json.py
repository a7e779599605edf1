"""OpenTelemetry traces in OTLP JSON, with ``gen_ai.*``, OpenInference or OpenLLMetry attributes.

Source: OpenTelemetry Protocol 1.x, JSON encoding (field names in camel case, 64-bit integers as text). The
snake case of the protobuf definition is also readable. A trace id is a run. Traces without a model call, tool
call or agent (such as web requests) are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentguard.errors import FormatError
from agentguard.trajectory.formats._otel.spans import SourceSpan
from agentguard.trajectory.formats._otel.trace_collector import TraceCollector
from agentguard.trajectory.formats.base import SourceItem, UnreadableRecord
from agentguard.trajectory.json_node import JsonNode, describe_type, parse_integer
from agentguard.trajectory.model import Record

_RESOURCE_KEYS = ("resourceSpans", "resource_spans")
_SCOPE_KEYS = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")
_SCALAR_KEYS = ("stringValue", "boolValue", "doubleValue", "bytesValue")
_KNOWN_SPAN_FIELDS = (
    *("traceId", "spanId", "parentSpanId", "startTimeUnixNano", "endTimeUnixNano"),
    *("trace_id", "span_id", "parent_span_id", "start_time_unix_nano", "end_time_unix_nano"),
    *("name", "attributes", "events", "status"),
)
_STATUS_ERROR = (2, "STATUS_CODE_ERROR", "ERROR")
_STATUS_OK = (1, "STATUS_CODE_OK", "OK")


class OtlpJson:
    """Importer of OTLP JSON: ``{"resourceSpans": [{"scopeSpans": [{"spans": [...]}]}]}``."""

    name = "otlp_json"
    summary = "OpenTelemetry traces (gen_ai.*, OpenInference), OTLP JSON"

    def score_match(self, value: Any) -> float:
        """Return 1 for an object with ``resourceSpans``, which no other format has."""
        return 1.0 if isinstance(value, Mapping) and any(key in value for key in _RESOURCE_KEYS) else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield one run for each trace, in the order of their first spans. Raises FormatError."""
        traces = TraceCollector(self.name)
        _add_export(traces, value, name)
        yield from traces.build_records(field=_RESOURCE_KEYS[0])

    def parse_sequence(
        self, items: Iterator[SourceItem], *, name: str
    ) -> Iterator[Record | UnreadableRecord]:
        """Yield the runs of several exports; the spans of a trace may be in several of them."""
        traces = TraceCollector(self.name)
        return traces.read_sequence(
            items, lambda value: _add_export(traces, value, name), field=_RESOURCE_KEYS[0]
        )


def _add_export(traces: TraceCollector, value: Any, name: str) -> None:
    """Add the spans of one export; if a span is malformed, add none of them."""
    parsed_spans: list[tuple[str, SourceSpan, Mapping[str, Any]]] = []
    for resource, span in _iter_spans(JsonNode.from_value(value)):
        trace = span.scalar_or(_find_key(span, "traceId", "trace_id"), name)
        parsed_spans.append((trace, _parse_span(span, traces.count + len(parsed_spans)), resource))
    for trace, source_span, resource in parsed_spans:
        traces.add_span(trace, source_span, resource)


def _iter_spans(root: JsonNode) -> Iterator[tuple[Mapping[str, Any], JsonNode]]:
    key = _find_key(root, *_RESOURCE_KEYS)
    for resource in root.nodes(key):
        attributes = parse_attributes(resource.node_or("resource"), "attributes")
        scopes = next((name for name in _SCOPE_KEYS if name in resource), _SCOPE_KEYS[0])
        for scope in resource.nodes_or(scopes):
            for span in scope.nodes_or("spans"):
                yield attributes, span


def _parse_span(node: JsonNode, position: int) -> SourceSpan:
    status = node.node_or("status")
    code = status.raw("code")
    return SourceSpan(
        id=node.scalar_or(_find_key(node, "spanId", "span_id"), f"span_{position}"),
        parent=node.scalar_or(_find_key(node, "parentSpanId", "parent_span_id")) or None,
        name=node.text_or("name"),
        position=position,
        start=_parse_nanoseconds(node, _find_key(node, "startTimeUnixNano", "start_time_unix_nano")),
        end=_parse_nanoseconds(node, _find_key(node, "endTimeUnixNano", "end_time_unix_nano")),
        attributes=parse_attributes(node, "attributes"),
        events=tuple(
            (event.text_or("name"), parse_attributes(event, "attributes"))
            for event in node.nodes_or("events")
        ),
        error=True if code in _STATUS_ERROR else False if code in _STATUS_OK else None,
        status=status.text_or("message"),
        extra=node.extra_fields(*_KNOWN_SPAN_FIELDS),
    )


def parse_attributes(node: JsonNode, key: str) -> dict[str, Any]:
    """Return the attributes of a span, event or resource with unwrapped values."""
    if isinstance(node.raw(key), dict):  # some exporters write a plain object
        return dict(node.node(key).data)
    return {
        item.text("key"): _parse_any_value(item.raw("value"), item.field_path("value"))
        for item in node.nodes_or(key)
    }


def _parse_any_value(value: Any, path: str) -> Any:
    """Unwrap an ``AnyValue``."""
    if value is None:
        return None
    node = JsonNode.from_value(value, path)
    for name in _SCALAR_KEYS:
        if name in node:
            return node.raw(name)
    if "intValue" in node:
        return parse_integer(node.raw("intValue"), node.field_path("intValue"))
    if "arrayValue" in node:
        inner = node.node("arrayValue")
        return [
            _parse_any_value(item, f"{inner.field_path('values')}[{i}]")
            for i, item in enumerate(inner.items_or("values"))
        ]
    if "kvlistValue" in node:
        return parse_attributes(node.node("kvlistValue"), "values")
    if not node.data:
        return None
    raise FormatError(f"expected an OTLP value, found {describe_type(value)} with other keys", field=path)


def _parse_nanoseconds(node: JsonNode, key: str) -> float | None:
    """Convert nanoseconds since the epoch to seconds; in OTLP, 0 is an unknown time."""
    value = node.raw(key)
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,20}", value):
        value = int(value)
    nanos = parse_integer(value, node.field_path(key)) if value is not None else 0
    # Integer arithmetic, so that a time that was a float of seconds is the same float again.
    return nanos / 1_000_000_000 if nanos else None


def _find_key(node: JsonNode, *names: str) -> str:
    return next((name for name in names if name in node), names[0])


FORMAT = OtlpJson()
