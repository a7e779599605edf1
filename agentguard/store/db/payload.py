"""JSON of a row as bytes that any database takes, and back without loss.

Plain JSON in UTF-8 where that is short, so that a person can read it with the database's own tools; zlib
(RFC 1950) where it is long. The first byte tells: ``{`` or ``[`` begins JSON, ``x`` begins zlib. Kept in
binary columns, because text columns of PostgreSQL refuse U+0000 and no database keeps half a surrogate pair:
such text is written with JSON's escapes. NaN and infinities are kept the way Python's json writes them.

A ``[`` holds the data and the texts of columns that had to be altered to fit their column.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import orjson

from agentguard.errors import StoreError

COMPRESSION_THRESHOLD_BYTES = 4096
MAX_PAYLOAD_BYTES = 32 * 1024 * 1024
MAX_DECODED_BYTES = 256 * 1024 * 1024
_COMPRESSION_LEVEL = 1


class RowRejected(ValueError):
    """A row that cannot be stored; the text says why, without its contents."""


def _encode_mapping(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise RowRejected(f"data holds a {type(value).__name__}, which JSON does not know")


_ORJSON_OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_UTF8_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_encode_mapping)
_ASCII_ENCODER = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), default=_encode_mapping)


def encode_payload(data: Mapping[str, Any], originals: Mapping[str, str] | None = None) -> bytes:
    """Bytes of ``data`` and of ``originals`` (column name to its unaltered text).

    Raises:
        Refused: something JSON does not know, a circle, nesting too deep, or more than `MAX_PAYLOAD_BYTES`.
    """
    if type(data) is not dict and not isinstance(data, Mapping):
        raise RowRejected(f"data is a {type(data).__name__}, not a mapping")
    if not data and not originals:
        return b"{}"
    value: Any = [data, originals] if originals else data
    try:
        raw = _to_json(value)
    except RecursionError:
        raise RowRejected("data is nested too deeply") from None
    except (ValueError, TypeError) as error:
        if isinstance(error, RowRejected):
            raise
        raise RowRejected(_describe_encoding_error(error)) from None
    packed = raw if len(raw) <= COMPRESSION_THRESHOLD_BYTES else zlib.compress(raw, _COMPRESSION_LEVEL)
    if len(packed) > MAX_PAYLOAD_BYTES or len(raw) > MAX_DECODED_BYTES:
        raise RowRejected(f"data is larger than {MAX_PAYLOAD_BYTES:,} bytes when compressed")
    return packed


def decode_payload(payload: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """What was packed: the data and the unaltered texts. Raises StoreError on any other bytes."""
    try:
        value = json.loads(_decompress(payload) if payload[:1] == b"x" else payload)
    except (ValueError, zlib.error, RecursionError):
        raise StoreError("the data of a stored row is damaged") from None
    if isinstance(value, dict):
        return value, {}
    if isinstance(value, list) and len(value) == 2 and all(isinstance(one, dict) for one in value):
        return value[0], value[1]
    raise StoreError("the data of a stored row is damaged")


def _to_json(value: Any) -> bytes:
    try:
        raw = orjson.dumps(value, default=_encode_mapping, option=_ORJSON_OPTIONS)
    except TypeError:
        return _to_json_fallback(value)
    # NaN and infinities become null there.
    return _to_json_fallback(value) if b"null" in raw else raw


def _to_json_fallback(value: Any) -> bytes:
    """What orjson does not take, or would not bring back: numbers of any size, NaN, broken Unicode, depth."""
    try:
        return _UTF8_ENCODER.encode(value).encode("utf-8")
    except UnicodeEncodeError:
        return _ASCII_ENCODER.encode(value).encode("ascii")


def _decompress(payload: bytes) -> bytes:
    """Bounded, so that no few bytes fill the memory."""
    stream = zlib.decompressobj()
    raw = stream.decompress(payload, MAX_DECODED_BYTES)
    if stream.unconsumed_tail or not stream.eof:
        raise StoreError("the data of a stored row is damaged or too large")
    return raw


def _describe_encoding_error(error: Exception) -> str:
    text = str(error)
    if "ircular" in text:
        return "data holds itself"
    if "digits" in text:
        return "data holds a number with too many digits"
    return f"data cannot be written as JSON ({type(error).__name__})"
