"""Parser of untrusted JSON into plain data that later code can walk, compare and write again.

The data from `loads` and `normalize_json` contains only dict, list, str, int, float, bool and None. It has at
most `MAX_DEPTH` levels, no lone surrogate, no NaN or infinity and no integer beyond 64 bits. So later code
cannot fail on it. Usual mistakes of JSON writers are kept as text: ``NaN`` becomes ``"NaN"``, a longer
integer its digits.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import orjson

from agentguard.errors import FormatError
from agentguard.trajectory.json_node import describe_type

# orjson writes at most 254 levels; a record stores a value some levels deeper than it was.
MAX_DEPTH = 200
MAX_LOG_DEPTH = 240
_BIG_INTEGER = re.compile(rb"[\[:,\s-]\d{19,}[\]},\s]|\A-?\d{19,}")
_NON_FINITE_CONSTANTS = ("NaN", "Infinity", "-Infinity")
_BOM = b"\xef\xbb\xbf"


def loads(data: bytes | str, *, strict: bool = False, depth: int = MAX_DEPTH) -> Any:
    """Parse one JSON value. Raises FormatError with the position, and no other error.

    Args:
        data: UTF-8 bytes or text; a byte order mark is skipped.
        strict: reject everything that the JSON standard rejects, instead of accepting usual mistakes.
        depth: maximum number of nested levels.
    """
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    raw = raw.removeprefix(_BOM)
    try:
        # orjson reads an integer beyond 64 bits as a float, which would silently change an id.
        value = None if _BIG_INTEGER.search(raw) else orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        if strict:
            raise FormatError(_describe_syntax_error(error)) from None
    else:
        if value is not None or raw.strip() == b"null":
            check_depth(value, depth)
            return value
    return _load_with_stdlib(raw, strict, depth)


def parse_arguments(value: Any, path: str) -> tuple[dict[str, Any] | None, str | None]:
    """Return arguments as ``(object, recorded text)``; each is None if absent or not a JSON object."""
    if value is None:
        return None, None
    if isinstance(value, dict):
        return value, None
    if not isinstance(value, str):
        raise FormatError(f"expected text or an object, found {describe_type(value)}", field=path)
    try:
        arguments = loads(value, strict=True)
    except FormatError:
        return None, value
    return (arguments if isinstance(arguments, dict) else None), value


def dumps(value: Any) -> bytes:
    """Write one JSON value that `loads` can read. Raises FormatError if ``value`` is not JSON data."""
    try:
        data = orjson.dumps(value)
    except TypeError:
        data = b"null"
    # orjson writes NaN and infinity as null and loses them, so check the value if the output has a null.
    if b"null" in data:
        data = orjson.dumps(normalize_json(value, depth=MAX_LOG_DEPTH))
    return bytes(memoryview(data))  # a copy: the output of orjson 3.13 occupies 4 KB at least


def normalize_json(value: Any, *, depth: int = MAX_DEPTH) -> Any:
    """Return ``value`` as plain data. Raises FormatError if it is not JSON data."""
    return _normalize(value, depth)


def check_depth(value: Any, depth: int = MAX_DEPTH) -> None:
    """Raise FormatError if ``value`` is nested deeper than ``depth`` levels."""
    level: list[Any] = [value]
    for _ in range(depth + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(v for v in item.values() if isinstance(v, dict | list))
            elif isinstance(item, list):
                below.extend(v for v in item if isinstance(v, dict | list))
        if not below:
            return
        level = below
    raise _build_depth_error(depth)


def _load_with_stdlib(raw: bytes, strict: bool, depth: int) -> Any:
    try:
        text = raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8 text (byte {error.start})", hint="save it as UTF-8") from None
    try:
        value = json.loads(text, parse_constant=_reject_constant if strict else str, strict=False)
        return normalize_json(value, depth=depth)
    except json.JSONDecodeError as error:
        raise FormatError(_describe_syntax_error(error)) from None
    except RecursionError:
        raise _build_depth_error(depth) from None
    except ValueError:
        raise FormatError("not valid JSON: a number that cannot be read") from None


def _build_depth_error(depth: int) -> FormatError:
    return FormatError(f"nested deeper than {depth} levels")


def _reject_constant(constant: str) -> Any:
    raise FormatError(f"not valid JSON: {constant}")


def _describe_syntax_error(error: json.JSONDecodeError) -> str:
    return f"not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})"


def _normalize(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _normalize_text(value)
    if isinstance(value, Mapping | list | tuple):
        if depth < 0:
            raise FormatError("nested too deep")
        if isinstance(value, Mapping):
            return {_normalize_key(k): _normalize(v, depth - 1) for k, v in value.items()}
        return [_normalize(v, depth - 1) for v in value]
    return _normalize_number(value)


def _normalize_text(value: str) -> str:
    if value.isascii():
        return str(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        # UTF-16 joins surrogates that form a pair and leaves one replacement character for each that
        # does not.
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return str(value)


def _normalize_key(key: Any) -> str:
    if isinstance(key, str):
        return _normalize_text(key)
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, int | float):
        return str(_normalize_number(key))
    raise FormatError(f"an object's key is {type(key).__name__}, not a string")


def _normalize_number(value: Any) -> Any:
    if isinstance(value, int):
        if -(2**63) <= value < 2**64:
            return int(value)
        try:
            return str(int(value))
        except ValueError:  # Python refuses to print integers of more than 4,300 digits.
            raise FormatError("an integer too long to read") from None
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return _NON_FINITE_CONSTANTS[0] if math.isnan(value) else _NON_FINITE_CONSTANTS[1 if value > 0 else 2]
    raise FormatError(f"{type(value).__name__} is not JSON data")
