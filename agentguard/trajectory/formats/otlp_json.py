"""OpenTelemetry traces in OTLP JSON, with ``gen_ai.*``, OpenInference or OpenLLMetry attributes.

Source: OpenTelemetry Protocol 1.x, JSON encoding (field names in camel case, 64-bit integers as text);
exporters that kept the snake case of the protobuf definition are read too. One trace id is one run; traces
without a model call, tool call or agent (web requests, say) are none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentguard.errors import FormatError, InputError
from agentguard.trajectory.formats._fields import Node, kind, whole
from agentguard.trajectory.formats._otel import Kind, Span, judgements
from agentguard.trajectory.formats._otel_marks import RUN_ID
from agentguard.trajectory.formats._otel_own import own_run
from agentguard.trajectory.formats._source import Item
from agentguard.trajectory.formats._spans import SpanRun
from agentguard.trajectory.formats.base import Broken
from agentguard.trajectory.groups import group_key
from agentguard.trajectory.model import Annotation, Record

_RESOURCES = ("resourceSpans", "resource_spans")
_SCOPES = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")
_SCALARS = ("stringValue", "boolValue", "doubleValue", "bytesValue")
_KNOWN = (
    *("traceId", "spanId", "parentSpanId", "startTimeUnixNano", "endTimeUnixNano"),
    *("trace_id", "span_id", "parent_span_id", "start_time_unix_nano", "end_time_unix_nano"),
    *("name", "attributes", "events", "status"),
)
_ERROR = (2, "STATUS_CODE_ERROR", "ERROR")
_OK = (1, "STATUS_CODE_OK", "OK")


class OtlpJson:
    """OTLP JSON: ``{"resourceSpans": [{"scopeSpans": [{"spans": [...]}]}]}``."""

    name = "otlp_json"
    summary = "OpenTelemetry traces (gen_ai.*, OpenInference), OTLP JSON"

    def recognises(self, value: Any) -> float:
        """By the key ``resourceSpans``, which no other format has."""
        return 1.0 if isinstance(value, Mapping) and any(key in value for key in _RESOURCES) else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield one run a trace, in the order their first spans stand. Raises FormatError with the field."""
        traces = _Traces(name)
        traces.add(value)
        yield from traces.records()

    def join(self, items: Iterator[Item], *, name: str) -> Iterator[Record | Broken]:
        """Yield the runs of several exports; a collector writes one a line and cuts traces at will."""
        traces = _Traces(name)
        bad = False
        for item in items:
            try:
                if item.error is not None:
                    raise item.error
                traces.add(item.value)
            except InputError as error:
                bad = True
                yield Broken(error=error.located(record=item.position))
        if traces.spans or not bad:
            yield from traces.records()


class _Traces:
    """Spans by trace, in the order they were added."""

    def __init__(self, name: str) -> None:
        self.spans: dict[str, list[Span]] = {}
        self._resources: dict[str, Mapping[str, Any]] = {}
        self._name = name
        self._count = 0

    def add(self, value: Any) -> None:
        """Take the spans of one export; all of them or, where one is wrong, none."""
        taken: list[tuple[str, Mapping[str, Any], Span]] = []
        for resource, span in _spans(Node.of(value)):
            trace = span.scalar_or(_key(span, "traceId", "trace_id"), self._name)
            taken.append((trace, resource, _span(span, self._count + len(taken))))
        self._count += len(taken)
        for trace, resource, one in taken:
            self.spans.setdefault(trace, []).append(one)
            self._resources.setdefault(trace, resource)

    def records(self) -> Iterator[Record]:
        agentic = {
            trace: spans
            for trace, spans in self.spans.items()
            if any(span.kind is not Kind.OTHER or RUN_ID in span.attributes for span in spans)
        }
        if not agentic:
            hint = "spans need gen_ai.operation.name or openinference.span.kind"
            raise FormatError(
                "no model call, tool call or agent among the spans", field=_RESOURCES[0], hint=hint
            )
        for trace, spans in agentic.items():
            yield _record(trace, spans, self._resources[trace])


def _record(trace: str, spans: list[Span], resource: Mapping[str, Any]) -> Record:
    conversation = next(filter(None, (span.text("conversation") for span in spans)), "")
    extra: dict[str, Any] = {"resource": resource} if resource else {}
    if conversation:
        extra["conversation"] = conversation
    trajectory = own_run(spans, format=OtlpJson.name, extra=extra)
    if trajectory is None:
        trajectory = SpanRun(spans).trajectory(id=trace, format=OtlpJson.name, extra=extra)
    told = judgements(spans)
    return Record(
        trajectory=trajectory,
        annotation=Annotation(
            group=group_key(trajectory.task) or None, extra={"spans": told} if told else {}
        ),
    )


def _spans(root: Node) -> Iterator[tuple[Mapping[str, Any], Node]]:
    key = _key(root, *_RESOURCES)
    for resource in root.nodes(key):
        attributes = attributes_of(resource.node_or("resource"), "attributes")
        scopes = next((name for name in _SCOPES if name in resource), _SCOPES[0])
        for scope in resource.nodes_or(scopes):
            for span in scope.nodes_or("spans"):
                yield attributes, span


def _span(node: Node, position: int) -> Span:
    status = node.node_or("status")
    code = status.raw("code")
    return Span(
        id=node.scalar_or(_key(node, "spanId", "span_id"), f"span_{position}"),
        parent=node.scalar_or(_key(node, "parentSpanId", "parent_span_id")) or None,
        name=node.text_or("name"),
        position=position,
        start=_seconds(node, _key(node, "startTimeUnixNano", "start_time_unix_nano")),
        end=_seconds(node, _key(node, "endTimeUnixNano", "end_time_unix_nano")),
        attributes=attributes_of(node, "attributes"),
        events=tuple(
            (event.text_or("name"), attributes_of(event, "attributes")) for event in node.nodes_or("events")
        ),
        error=True if code in _ERROR else False if code in _OK else None,
        status=status.text_or("message"),
        extra=node.rest(*_KNOWN),
    )


def attributes_of(node: Node, key: str) -> dict[str, Any]:
    """The attributes of a span, event or resource, with their values unwrapped."""
    if isinstance(node.raw(key), dict):  # some exporters write a plain object
        return dict(node.node(key).data)
    return {item.text("key"): _any(item.raw("value"), item.at("value")) for item in node.nodes_or(key)}


def _any(value: Any, path: str) -> Any:
    """Unwrap an ``AnyValue``."""
    if value is None:
        return None
    node = Node.of(value, path)
    for name in _SCALARS:
        if name in node:
            return node.raw(name)
    if "intValue" in node:
        return whole(node.raw("intValue"), node.at("intValue"))
    if "arrayValue" in node:
        inner = node.node("arrayValue")
        return [_any(item, f"{inner.at('values')}[{i}]") for i, item in enumerate(inner.items_or("values"))]
    if "kvlistValue" in node:
        return attributes_of(node.node("kvlistValue"), "values")
    if not node.data:
        return None
    raise FormatError(f"expected an OTLP value, found {kind(value)} with other keys", field=path)


def _seconds(node: Node, key: str) -> float | None:
    """Nanoseconds since the epoch to seconds; 0 is how OTLP says that a time is not known."""
    value = node.raw(key)
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,20}", value):
        value = int(value)
    nanos = whole(value, node.at(key)) if value is not None else 0
    # Of whole numbers, so that a time that was a float of seconds is that float again.
    return nanos / 1_000_000_000 if nanos else None


def _key(node: Node, *names: str) -> str:
    return next((name for name in names if name in node), names[0])


FORMAT = OtlpJson()
