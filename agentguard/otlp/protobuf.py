"""Export requests as protobuf, written straight from the structure of their JSON encoding.

The library's own way from JSON to bytes takes several times as long, and a proxy sends a span for each of its
requests. Field numbers are those of the definitions in ``opentelemetry-proto`` 1.x, against which the tests
hold this; the wire format is https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, Literal

Kind = Literal["text", "id", "fixed", "number", "double", "one", "many"]
Fields = Mapping[str, tuple[int, Kind, "Fields"]]

_NONE: Final[Fields] = {}
_FIXED: Final = struct.Struct("<Q")
_DOUBLE: Final = struct.Struct("<d")


def _text(number: int) -> tuple[int, Kind, Fields]:
    return number, "text", _NONE


def _fixed(number: int) -> tuple[int, Kind, Fields]:
    return number, "fixed", _NONE


def _number(number: int) -> tuple[int, Kind, Fields]:
    return number, "number", _NONE


def _id(number: int) -> tuple[int, Kind, Fields]:
    return number, "id", _NONE


_VALUE: Final[dict[str, tuple[int, Kind, Fields]]] = {
    "stringValue": _text(1),
    "boolValue": _number(2),
    "intValue": _number(3),
    "doubleValue": (4, "double", _NONE),
}
_VALUE["arrayValue"] = (5, "one", {"values": (1, "many", _VALUE)})
_PAIR: Final[Fields] = {"key": _text(1), "value": (2, "one", _VALUE)}
_RESOURCE: Final[Fields] = {"attributes": (1, "many", _PAIR)}
_SCOPE: Final[Fields] = {"name": _text(1), "version": _text(2)}
_EVENT: Final[Fields] = {"timeUnixNano": _fixed(1), "name": _text(2), "attributes": (3, "many", _PAIR)}
_SPAN: Final[Fields] = {
    "traceId": _id(1),
    "spanId": _id(2),
    "parentSpanId": _id(4),
    "name": _text(5),
    "kind": _number(6),
    "startTimeUnixNano": _fixed(7),
    "endTimeUnixNano": _fixed(8),
    "attributes": (9, "many", _PAIR),
    "events": (11, "many", _EVENT),
    "status": (15, "one", {"message": _text(2), "code": _number(3)}),
}
_RECORD: Final[Fields] = {
    "timeUnixNano": _fixed(1),
    "severityNumber": _number(2),
    "attributes": (6, "many", _PAIR),
    "traceId": _id(9),
    "spanId": _id(10),
    "observedTimeUnixNano": _fixed(11),
    "eventName": _text(12),
}


def _request(scope: Fields, name: str) -> Fields:
    return {name: (1, "many", {"resource": (1, "one", _RESOURCE), f"scope{name[8:]}": (2, "many", scope)})}


REQUESTS: Final[Mapping[str, Fields]] = {
    "traces": _request({"scope": (1, "one", _SCOPE), "spans": (2, "many", _SPAN)}, "resourceSpans"),
    "logs": _request({"scope": (1, "one", _SCOPE), "logRecords": (2, "many", _RECORD)}, "resourceLogs"),
}
"""Signal to the fields of its export request."""


def written(fields: Fields, data: Mapping[str, Any]) -> bytes:
    """A message's bytes. Raises KeyError for a field that it does not have."""
    made = bytearray()
    for name, value in data.items():
        number, kind, inner = fields[name]
        if kind == "text":
            _put(made, number, value.encode())
        elif kind == "number":
            made += _varint(number << 3) + _varint(int(value) & 0xFFFF_FFFF_FFFF_FFFF)
        elif kind == "one":
            _put(made, number, written(inner, value))
        elif kind == "many":
            for one in value:
                _put(made, number, written(inner, one))
        elif kind == "fixed":
            made += _varint(number << 3 | 1) + _FIXED.pack(int(value))
        elif kind == "id":
            _put(made, number, bytes.fromhex(value))
        else:
            made += _varint(number << 3 | 1) + _DOUBLE.pack(value)
    return bytes(made)


def _put(made: bytearray, number: int, body: bytes) -> None:
    made += _varint(number << 3 | 2)
    made += _varint(len(body))
    made += body


def _varint(value: int) -> bytes:
    if value < 0x80:
        return _SHORT[value]
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


_SHORT: Final = [bytes((value,)) for value in range(0x80)]
