"""Encoder of export requests as protobuf, directly from the structure of their JSON encoding.

The conversion of the library takes several times as long, and a proxy sends a span for each request. Field
numbers are those of ``opentelemetry-proto`` 1.x; tests compare them. Wire format:
https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, Literal

FieldKind = Literal["text", "id", "fixed", "number", "double", "one", "many"]
FieldMap = Mapping[str, tuple[int, FieldKind, "FieldMap"]]

_NO_FIELDS: Final[FieldMap] = {}
_FIXED64: Final = struct.Struct("<Q")
_DOUBLE: Final = struct.Struct("<d")


def _text_field(number: int) -> tuple[int, FieldKind, FieldMap]:
    return number, "text", _NO_FIELDS


def _fixed_field(number: int) -> tuple[int, FieldKind, FieldMap]:
    return number, "fixed", _NO_FIELDS


def _number_field(number: int) -> tuple[int, FieldKind, FieldMap]:
    return number, "number", _NO_FIELDS


def _id_field(number: int) -> tuple[int, FieldKind, FieldMap]:
    return number, "id", _NO_FIELDS


_VALUE_FIELD_MAP: Final[dict[str, tuple[int, FieldKind, FieldMap]]] = {
    "stringValue": _text_field(1),
    "boolValue": _number_field(2),
    "intValue": _number_field(3),
    "doubleValue": (4, "double", _NO_FIELDS),
}
_VALUE_FIELD_MAP["arrayValue"] = (5, "one", {"values": (1, "many", _VALUE_FIELD_MAP)})
_KEY_VALUE_FIELDS: Final[FieldMap] = {"key": _text_field(1), "value": (2, "one", _VALUE_FIELD_MAP)}
_RESOURCE_FIELDS: Final[FieldMap] = {"attributes": (1, "many", _KEY_VALUE_FIELDS)}
_SCOPE_FIELDS: Final[FieldMap] = {"name": _text_field(1), "version": _text_field(2)}
_EVENT_FIELDS: Final[FieldMap] = {
    "timeUnixNano": _fixed_field(1),
    "name": _text_field(2),
    "attributes": (3, "many", _KEY_VALUE_FIELDS),
}
_SPAN_FIELDS: Final[FieldMap] = {
    "traceId": _id_field(1),
    "spanId": _id_field(2),
    "parentSpanId": _id_field(4),
    "name": _text_field(5),
    "kind": _number_field(6),
    "startTimeUnixNano": _fixed_field(7),
    "endTimeUnixNano": _fixed_field(8),
    "attributes": (9, "many", _KEY_VALUE_FIELDS),
    "events": (11, "many", _EVENT_FIELDS),
    "status": (15, "one", {"message": _text_field(2), "code": _number_field(3)}),
}
_LOG_RECORD_FIELDS: Final[FieldMap] = {
    "timeUnixNano": _fixed_field(1),
    "severityNumber": _number_field(2),
    "attributes": (6, "many", _KEY_VALUE_FIELDS),
    "traceId": _id_field(9),
    "spanId": _id_field(10),
    "observedTimeUnixNano": _fixed_field(11),
    "eventName": _text_field(12),
}


def _request_fields(scope: FieldMap, name: str) -> FieldMap:
    return {
        name: (1, "many", {"resource": (1, "one", _RESOURCE_FIELDS), f"scope{name[8:]}": (2, "many", scope)})
    }


REQUEST_FIELDS: Final[Mapping[str, FieldMap]] = {
    "traces": _request_fields(
        {"scope": (1, "one", _SCOPE_FIELDS), "spans": (2, "many", _SPAN_FIELDS)}, "resourceSpans"
    ),
    "logs": _request_fields(
        {"scope": (1, "one", _SCOPE_FIELDS), "logRecords": (2, "many", _LOG_RECORD_FIELDS)}, "resourceLogs"
    ),
}
"""Fields of the export request of each signal."""


def encode_message(fields: FieldMap, data: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message. Raises KeyError for an unknown field."""
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


_SINGLE_BYTE_VARINTS: Final = [bytes((value,)) for value in range(0x80)]
