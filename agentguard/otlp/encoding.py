"""Spans and events in the two encodings of OTLP/HTTP 1.x: protobuf and JSON.

Both come from one structure, that of the JSON encoding. Source: the OpenTelemetry Protocol specification and
the definitions in the package ``opentelemetry-proto``. OTLP's JSON has ids in hexadecimal and 64-bit numbers
as text; protobuf's standard JSON mapping would have ids in base64.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

from agentguard.errors import MissingExtra
from agentguard.otlp.model import Attributes, AttributeValue, OtlpSpan, SpanEvent, SpanKind
from agentguard.version import __version__

Encoding = Literal["protobuf", "json"]
Signal = Literal["traces", "logs"]

CONTENT_TYPES: Final[Mapping[Encoding, str]] = {
    "protobuf": "application/x-protobuf",
    "json": "application/json",
}
_KIND_NUMBERS: Final[Mapping[SpanKind, int]] = {"internal": 1, "server": 2, "client": 3}
_STATUS_ERROR: Final = 2
_STATUS_OK: Final = 1
_SEVERITY_INFO: Final = 9
_INT64_LIMIT: Final = 2**63
JsonData = dict[str, Any]
FieldKind = Literal["text", "id", "fixed", "number", "double", "one", "many"]
FieldMap = Mapping[str, tuple[int, FieldKind, "FieldMap"]]
"""Fields of a protobuf message by JSON name: number, encoding, and the fields of a nested message."""
_NO_FIELDS: Final[FieldMap] = {}
_FIXED64: Final = struct.Struct("<Q")
_DOUBLE: Final = struct.Struct("<d")
_SINGLE_BYTE_VARINTS: Final = [bytes((value,)) for value in range(0x80)]


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


def _build_text_field(number: int) -> tuple[int, FieldKind, FieldMap]:
    return number, "text", _NO_FIELDS


def _build_fixed_field(number: int) -> tuple[int, FieldKind, FieldMap]:
    return number, "fixed", _NO_FIELDS


def _build_number_field(number: int) -> tuple[int, FieldKind, FieldMap]:
    return number, "number", _NO_FIELDS


def _build_id_field(number: int) -> tuple[int, FieldKind, FieldMap]:
    return number, "id", _NO_FIELDS


_VALUE_FIELD_MAP: Final[dict[str, tuple[int, FieldKind, FieldMap]]] = {
    "stringValue": _build_text_field(1),
    "boolValue": _build_number_field(2),
    "intValue": _build_number_field(3),
    "doubleValue": (4, "double", _NO_FIELDS),
}
_VALUE_FIELD_MAP["arrayValue"] = (5, "one", {"values": (1, "many", _VALUE_FIELD_MAP)})
_KEY_VALUE_FIELDS: Final[FieldMap] = {"key": _build_text_field(1), "value": (2, "one", _VALUE_FIELD_MAP)}
_RESOURCE_FIELDS: Final[FieldMap] = {"attributes": (1, "many", _KEY_VALUE_FIELDS)}
_SCOPE_FIELDS: Final[FieldMap] = {"name": _build_text_field(1), "version": _build_text_field(2)}
_EVENT_FIELDS: Final[FieldMap] = {
    "timeUnixNano": _build_fixed_field(1),
    "name": _build_text_field(2),
    "attributes": (3, "many", _KEY_VALUE_FIELDS),
}
_SPAN_FIELDS: Final[FieldMap] = {
    "traceId": _build_id_field(1),
    "spanId": _build_id_field(2),
    "parentSpanId": _build_id_field(4),
    "name": _build_text_field(5),
    "kind": _build_number_field(6),
    "startTimeUnixNano": _build_fixed_field(7),
    "endTimeUnixNano": _build_fixed_field(8),
    "attributes": (9, "many", _KEY_VALUE_FIELDS),
    "events": (11, "many", _EVENT_FIELDS),
    "status": (15, "one", {"message": _build_text_field(2), "code": _build_number_field(3)}),
}
_LOG_RECORD_FIELDS: Final[FieldMap] = {
    "timeUnixNano": _build_fixed_field(1),
    "severityNumber": _build_number_field(2),
    "attributes": (6, "many", _KEY_VALUE_FIELDS),
    "traceId": _build_id_field(9),
    "spanId": _build_id_field(10),
    "observedTimeUnixNano": _build_fixed_field(11),
    "eventName": _build_text_field(12),
}


def _build_request_fields(scope: FieldMap, name: str) -> FieldMap:
    return {
        name: (1, "many", {"resource": (1, "one", _RESOURCE_FIELDS), f"scope{name[8:]}": (2, "many", scope)})
    }


REQUEST_FIELDS: Final[Mapping[str, FieldMap]] = {
    "traces": _build_request_fields(
        {"scope": (1, "one", _SCOPE_FIELDS), "spans": (2, "many", _SPAN_FIELDS)}, "resourceSpans"
    ),
    "logs": _build_request_fields(
        {"scope": (1, "one", _SCOPE_FIELDS), "logRecords": (2, "many", _LOG_RECORD_FIELDS)}, "resourceLogs"
    ),
}
"""Fields of the export request of each signal."""


def encode_message(fields: FieldMap, data: Mapping[str, Any]) -> bytes:
    """Return a message in protobuf. Raises KeyError for an unknown field.

    Args:
        fields: fields of the message.
        data: the message in the JSON encoding.
    """
    encoded = bytearray()
    for name, value in data.items():
        number, kind, inner = fields[name]
        if kind == "text":
            _append_length_delimited(encoded, number, value.encode())
        elif kind == "number":
            encoded += _encode_varint(number << 3) + _encode_varint(int(value) & 0xFFFF_FFFF_FFFF_FFFF)
        elif kind == "one":
            _append_length_delimited(encoded, number, encode_message(inner, value))
        elif kind == "many":
            for item in value:
                _append_length_delimited(encoded, number, encode_message(inner, item))
        elif kind == "fixed":
            encoded += _encode_varint(number << 3 | 1) + _FIXED64.pack(int(value))
        elif kind == "id":
            _append_length_delimited(encoded, number, bytes.fromhex(value))
        else:
            encoded += _encode_varint(number << 3 | 1) + _DOUBLE.pack(value)
    return bytes(encoded)


def _append_length_delimited(buffer: bytearray, number: int, body: bytes) -> None:
    buffer += _encode_varint(number << 3 | 2)
    buffer += _encode_varint(len(body))
    buffer += body


def _encode_varint(value: int) -> bytes:
    if value < 0x80:
        return _SINGLE_BYTE_VARINTS[value]
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
