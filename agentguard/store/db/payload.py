"""Lossless encoding of the JSON of a row as bytes for a binary column.

- Short data is plain JSON in UTF-8, so that a person can read it with the tools of the database.
- Long data is compressed with zlib (RFC 1950).
- The first byte identifies the form: ``{`` or ``[`` begins JSON, ``x`` begins zlib.
- The columns are binary because text columns of PostgreSQL reject U+0000. No database stores lone surrogates,
  so such text is written with JSON escapes.
- NaN and infinities have the form of Python's json.
- A list (``[``) holds the data and the original texts of columns that were altered to fit.
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
    """Error for a row that cannot be stored; the message gives the reason without the contents."""


def _encode_mapping(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise RowRejected(f"data holds a {type(value).__name__}, which is not a JSON type")


_ORJSON_OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_UTF8_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_encode_mapping)
_ASCII_ENCODER = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), default=_encode_mapping)


def encode_payload(data: Mapping[str, Any], originals: Mapping[str, str] | None = None) -> bytes:
    """Return ``data`` and ``originals`` (column name to its unaltered text) as bytes.

    Raises:
        RowRejected: the data is not JSON, contains itself, is nested too deeply, or is larger than
            `MAX_PAYLOAD_BYTES`.
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
    """Return the data and the original texts of a payload. Raises StoreError on invalid bytes."""
    try:
        value = json.loads(decompress_payload(payload))
    except (ValueError, RecursionError):
        raise StoreError("the data of a stored row is damaged") from None
    if isinstance(value, dict):
        return value, {}
    if isinstance(value, list) and len(value) == 2 and all(isinstance(one, dict) for one in value):
        return value[0], value[1]
    raise StoreError("the data of a stored row is damaged")


def decompress_payload(payload: bytes) -> bytes:
    """Return the JSON of a payload as bytes. Raises StoreError if it cannot be decompressed."""
    try:
        return _decompress(payload) if payload[:1] == b"x" else payload
    except zlib.error:
        raise StoreError("the data of a stored row is damaged") from None


def _to_json(value: Any) -> bytes:
    try:
        raw = orjson.dumps(value, default=_encode_mapping, option=_ORJSON_OPTIONS)
    except TypeError:
        return _to_json_fallback(value)
    # orjson writes NaN and infinities as null, so a null may stand for them.
    return _to_json_fallback(value) if b"null" in raw else raw


def _to_json_fallback(value: Any) -> bytes:
    """Encode with json, for data that orjson rejects or alters: large integers, NaN, lone surrogates."""
    try:
        return _UTF8_ENCODER.encode(value).encode("utf-8")
    except UnicodeEncodeError:
        return _ASCII_ENCODER.encode(value).encode("ascii")


def _decompress(payload: bytes) -> bytes:
    """Return at most `MAX_DECODED_BYTES`, so that a small payload cannot exhaust the memory."""
    stream = zlib.decompressobj()
    raw = stream.decompress(payload, MAX_DECODED_BYTES)
    if stream.unconsumed_tail or not stream.eof:
        raise StoreError("the data of a stored row is damaged or too large")
    return raw


def _describe_encoding_error(error: Exception) -> str:
    text = str(error)
    if "ircular" in text:
        return "data contains itself"
    if "digits" in text:
        return "data contains a number with too many digits"
    return f"data cannot be written as JSON ({type(error).__name__})"
