"""Spans and events in the two encodings of OTLP/HTTP 1.x: protobuf and JSON.

Both come from one structure, that of the JSON encoding. Source: the OpenTelemetry Protocol specification and
the definitions in the package ``opentelemetry-proto``. OTLP's JSON has ids in hexadecimal and 64-bit numbers
as text; protobuf's standard JSON mapping would have ids in base64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

from agentguard.errors import MissingExtra
from agentguard.otlp.model import Attributes, AttributeValue, OtlpSpan, SpanEvent, SpanKindName
from agentguard.otlp.protobuf import REQUEST_FIELDS, encode_message
from agentguard.version import __version__

Encoding = Literal["protobuf", "json"]
Signal = Literal["traces", "logs"]

CONTENT_TYPES: Final[Mapping[Encoding, str]] = {
    "protobuf": "application/x-protobuf",
    "json": "application/json",
}
_KIND_NUMBERS: Final[Mapping[SpanKindName, int]] = {"internal": 1, "server": 2, "client": 3}
_STATUS_ERROR: Final = 2
_STATUS_OK: Final = 1
_SEVERITY_INFO: Final = 9
_INT64_LIMIT: Final = 2**63
JsonData = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorResponse:
    """Response of a collector to a batch: number of rejected records, and the reason."""

    rejected: int = 0
    message: str = ""


def build_span_data(span: OtlpSpan, *, include_events: bool = True) -> JsonData:
    """Return a span in the JSON encoding; ``include_events`` includes its events."""
    data: JsonData = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": _replace_surrogates(span.name),
        "kind": _KIND_NUMBERS[span.kind],
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _build_attributes(span.attributes),
        "status": {},
    }
    if span.parent_id is not None:
        data["parentSpanId"] = span.parent_id
    if include_events and span.events:
        data["events"] = [_build_event(one) for one in span.events]
    if span.error is not None:
        data["status"] = {"code": _STATUS_ERROR if span.error else _STATUS_OK}
        if span.error and span.message:
            data["status"]["message"] = _replace_surrogates(span.message)
    return data


def build_log_records(span: OtlpSpan) -> Iterator[JsonData]:
    """Yield the events of a span as log records, as the conventions define them."""
    for event in span.events:
        yield {
            "timeUnixNano": str(event.at_ns),
            "observedTimeUnixNano": str(event.at_ns),
            "severityNumber": _SEVERITY_INFO,
            "eventName": event.name,
            "attributes": _build_attributes(event.attributes),
            "traceId": span.trace_id,
            "spanId": span.span_id,
        }


def build_request_data(signal: Signal, records: Sequence[JsonData], *, service: str) -> JsonData:
    """Return an export request of one signal; Phoenix assigns it to the project named like the service."""
    names = {"service.name": service, "openinference.project.name": service}
    resource = {"attributes": _build_attributes(names)}
    scope = {"name": "agentguard", "version": __version__}
    if signal == "traces":
        return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": records}]}]}
    return {"resourceLogs": [{"resource": resource, "scopeLogs": [{"scope": scope, "logRecords": records}]}]}


def encode_request(signal: Signal, data: JsonData, encoding: Encoding) -> bytes:
    """Return the bytes of a request. Raises MissingExtra if protobuf is requested but not installed."""
    if encoding == "json":
        return orjson.dumps(data)
    check_encoding(encoding)
    return encode_message(REQUEST_FIELDS[signal], data)


def parse_response(signal: Signal, body: bytes, encoding: Encoding) -> CollectorResponse:
    """Parse a response of status 200; an empty or unreadable one rejects nothing."""
    data: Any
    try:
        data = orjson.loads(body) if encoding == "json" else _parse_protobuf(signal, body)
    except ValueError:
        return CollectorResponse()
    partial = data.get("partialSuccess") if isinstance(data, Mapping) else None
    if not isinstance(partial, Mapping):
        return CollectorResponse()
    name = "rejectedSpans" if signal == "traces" else "rejectedLogRecords"
    return CollectorResponse(
        rejected=_parse_count(partial.get(name)), message=str(partial.get("errorMessage") or "")[:500]
    )


def check_encoding(encoding: Encoding) -> None:
    """Raise MissingExtra if the encoding is not installed."""
    if encoding == "protobuf":
        _load_message_types("traces")


def _load_message_types(signal: Signal) -> tuple[Any, Any]:
    """Return the request and response types of a signal."""
    try:
        if signal == "traces":
            from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces

            return traces.ExportTraceServiceRequest, traces.ExportTraceServiceResponse
        from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs

        return logs.ExportLogsServiceRequest, logs.ExportLogsServiceResponse
    except ImportError:
        raise MissingExtra("opentelemetry-proto", "otel") from None


def _parse_protobuf(signal: Signal, body: bytes) -> Any:
    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message import DecodeError

    try:
        return MessageToDict(_load_message_types(signal)[1].FromString(body))
    except DecodeError as error:
        raise ValueError(str(error)) from None


def _build_event(event: SpanEvent) -> JsonData:
    return {
        "timeUnixNano": str(event.at_ns),
        "name": event.name,
        "attributes": _build_attributes(event.attributes),
    }


def _build_attributes(attributes: Attributes) -> list[JsonData]:
    return [
        {"key": _replace_surrogates(name), "value": _build_any_value(value)}
        for name, value in attributes.items()
    ]


def _build_any_value(value: AttributeValue) -> JsonData:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return (
            {"intValue": str(value)}
            if -_INT64_LIMIT <= value < _INT64_LIMIT
            else {"doubleValue": float(value)}
        )
    if isinstance(value, float):
        # NaN and infinities are not valid JSON.
        finite = value == value and value not in (float("inf"), float("-inf"))
        return {"doubleValue": value} if finite else {"stringValue": str(value)}
    if isinstance(value, tuple):
        return {"arrayValue": {"values": [_build_any_value(one) for one in value]}}
    return {"stringValue": _replace_surrogates(value)}


def _replace_surrogates(text: str) -> str:
    """Return text that is valid in UTF-8; half a surrogate pair becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def _parse_count(value: object) -> int:
    try:
        return max(0, int(str(value))) if value is not None else 0
    except ValueError:
        return 0
