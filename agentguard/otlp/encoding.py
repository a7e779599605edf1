"""Spans and events in the two encodings of OTLP/HTTP 1.x: protobuf and JSON.

Both are made from one structure, that of the JSON encoding. Source: the OpenTelemetry Protocol specification
and the definitions in the package ``opentelemetry-proto``; JSON writes ids in hexadecimal and 64-bit numbers
as text, where protobuf's own mapping would write ids in base64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

from agentguard.errors import MissingExtra
from agentguard.otlp.model import Attributes, Kind, OtlpSpan, SpanEvent, Value
from agentguard.otlp.protobuf import REQUESTS, written
from agentguard.version import __version__

Encoding = Literal["protobuf", "json"]
Signal = Literal["traces", "logs"]

CONTENT_TYPES: Final[Mapping[Encoding, str]] = {
    "protobuf": "application/x-protobuf",
    "json": "application/json",
}
_KINDS: Final[Mapping[Kind, int]] = {"internal": 1, "server": 2, "client": 3}
_ERROR: Final = 2
_OK: Final = 1
_INFO: Final = 9
_INT64: Final = 2**63
Data = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What a collector said to a batch: how many of it it rejected, and why."""

    rejected: int = 0
    message: str = ""


def span_data(span: OtlpSpan, *, events: bool = True) -> Data:
    """A span as the JSON encoding writes it; ``events`` says whether those of the span go with it."""
    data: Data = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": _clean(span.name),
        "kind": _KINDS[span.kind],
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(span.attributes),
        "status": {},
    }
    if span.parent_id is not None:
        data["parentSpanId"] = span.parent_id
    if events and span.events:
        data["events"] = [_event(one) for one in span.events]
    if span.error is not None:
        data["status"] = {"code": _ERROR if span.error else _OK}
        if span.error and span.message:
            data["status"]["message"] = _clean(span.message)
    return data


def log_data(span: OtlpSpan) -> Iterator[Data]:
    """The events of a span as log records of that span, which is how the conventions define them."""
    for event in span.events:
        yield {
            "timeUnixNano": str(event.at_ns),
            "observedTimeUnixNano": str(event.at_ns),
            "severityNumber": _INFO,
            "eventName": event.name,
            "attributes": _attributes(event.attributes),
            "traceId": span.trace_id,
            "spanId": span.span_id,
        }


def request_data(signal: Signal, records: Sequence[Data], *, service: str) -> Data:
    """An export request of one signal; Phoenix puts it into the project that is named like the service."""
    names = {"service.name": service, "openinference.project.name": service}
    resource = {"attributes": _attributes(names)}
    scope = {"name": "agentguard", "version": __version__}
    if signal == "traces":
        return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": records}]}]}
    return {"resourceLogs": [{"resource": resource, "scopeLogs": [{"scope": scope, "logRecords": records}]}]}


def encoded(signal: Signal, data: Data, encoding: Encoding) -> bytes:
    """The bytes of a request. Raises MissingExtra where protobuf is asked for and not installed."""
    if encoding == "json":
        return orjson.dumps(data)
    check(encoding)
    return written(REQUESTS[signal], data)


def accepted(signal: Signal, body: bytes, encoding: Encoding) -> Accepted:
    """What a response of status 200 says; an empty one, or one that cannot be read, rejects nothing."""
    found: Any
    try:
        found = orjson.loads(body) if encoding == "json" else _protobuf(signal, body)
    except ValueError:
        return Accepted()
    partial = found.get("partialSuccess") if isinstance(found, Mapping) else None
    if not isinstance(partial, Mapping):
        return Accepted()
    name = "rejectedSpans" if signal == "traces" else "rejectedLogRecords"
    return Accepted(rejected=_count(partial.get(name)), message=str(partial.get("errorMessage") or "")[:500])


def check(encoding: Encoding) -> None:
    """Raise MissingExtra where the encoding is not installed."""
    if encoding == "protobuf":
        _messages("traces")


def _messages(signal: Signal) -> tuple[Any, Any]:
    """Request and response of a signal."""
    try:
        if signal == "traces":
            from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces

            return traces.ExportTraceServiceRequest, traces.ExportTraceServiceResponse
        from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs

        return logs.ExportLogsServiceRequest, logs.ExportLogsServiceResponse
    except ImportError:
        raise MissingExtra("opentelemetry-proto", "otel") from None


def _protobuf(signal: Signal, body: bytes) -> Any:
    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message import DecodeError

    try:
        return MessageToDict(_messages(signal)[1].FromString(body))
    except DecodeError as error:
        raise ValueError(str(error)) from None


def _event(event: SpanEvent) -> Data:
    return {
        "timeUnixNano": str(event.at_ns),
        "name": event.name,
        "attributes": _attributes(event.attributes),
    }


def _attributes(held: Attributes) -> list[Data]:
    return [{"key": _clean(name), "value": _any(value)} for name, value in held.items()]


def _any(value: Value) -> Data:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)} if -_INT64 <= value < _INT64 else {"doubleValue": float(value)}
    if isinstance(value, float):
        # NaN and infinities are not JSON, and say nothing.
        finite = value == value and value not in (float("inf"), float("-inf"))
        return {"doubleValue": value} if finite else {"stringValue": str(value)}
    if isinstance(value, tuple):
        return {"arrayValue": {"values": [_any(one) for one in value]}}
    return {"stringValue": _clean(value)}


def _clean(text: str) -> str:
    """Text that UTF-8 can hold: half a surrogate pair becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def _count(value: object) -> int:
    try:
        return max(0, int(str(value))) if value is not None else 0
    except ValueError:
        return 0
