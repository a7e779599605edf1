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

PLAIN_BYTES = 4096
MAX_BYTES = 32 * 1024 * 1024
MAX_UNPACKED_BYTES = 256 * 1024 * 1024
_FAST = 1


class RowRejected(ValueError):
    """A row that cannot be stored; the text says why, without its contents."""


def _other(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise RowRejected(f"data holds a {type(value).__name__}, which JSON does not know")


_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_PLAIN = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_other)
_ESCAPED = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), default=_other)


def pack(data: Mapping[str, Any], originals: Mapping[str, str] | None = None) -> bytes:
    """Bytes of ``data`` and of ``originals`` (column name to its unaltered text).

    Raises:
        Refused: something JSON does not know, a circle, nesting too deep, or more than `MAX_BYTES`.
    """
    if type(data) is not dict and not isinstance(data, Mapping):
        raise RowRejected(f"data is a {type(data).__name__}, not a mapping")
    if not data and not originals:
        return b"{}"
    value: Any = [data, originals] if originals else data
    try:
        raw = _raw(value)
    except RecursionError:
        raise RowRejected("data is nested too deeply") from None
    except (ValueError, TypeError) as error:
        if isinstance(error, RowRejected):
            raise
        raise RowRejected(_reason(error)) from None
    packed = raw if len(raw) <= PLAIN_BYTES else zlib.compress(raw, _FAST)
    if len(packed) > MAX_BYTES or len(raw) > MAX_UNPACKED_BYTES:
        raise RowRejected(f"data is larger than {MAX_BYTES:,} bytes when compressed")
    return packed


def unpack(packed: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """What was packed: the data and the unaltered texts. Raises StoreError on any other bytes."""
    try:
        value = json.loads(_inflated(packed) if packed[:1] == b"x" else packed)
    except (ValueError, zlib.error, RecursionError):
        raise StoreError("the data of a stored row is damaged") from None
    if isinstance(value, dict):
        return value, {}
    if isinstance(value, list) and len(value) == 2 and all(isinstance(one, dict) for one in value):
        return value[0], value[1]
    raise StoreError("the data of a stored row is damaged")


def _raw(value: Any) -> bytes:
    try:
        raw = orjson.dumps(value, default=_other, option=_STRICT)
    except TypeError:
        return _rare(value)
    # NaN and infinities become null there.
    return _rare(value) if b"null" in raw else raw


def _rare(value: Any) -> bytes:
    """What orjson does not take, or would not bring back: numbers of any size, NaN, broken Unicode, depth."""
    try:
        return _PLAIN.encode(value).encode("utf-8")
    except UnicodeEncodeError:
        return _ESCAPED.encode(value).encode("ascii")


def _inflated(packed: bytes) -> bytes:
    """Bounded, so that no few bytes fill the memory."""
    stream = zlib.decompressobj()
    raw = stream.decompress(packed, MAX_UNPACKED_BYTES)
    if stream.unconsumed_tail or not stream.eof:
        raise StoreError("the data of a stored row is damaged or too large")
    return raw


def _reason(error: Exception) -> str:
    text = str(error)
    if "ircular" in text:
        return "data holds itself"
    if "digits" in text:
        return "data holds a number with too many digits"
    return f"data cannot be written as JSON ({type(error).__name__})"
