"""Writer for the subset of TOML that a manifest needs (``tomllib`` only reads)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from agentguard.errors import ConfigError

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def dumps(data: Mapping[str, Any], *, comment: str = "") -> str:
    """Return text, numbers, booleans, lists and tables of these as TOML 1.0; omit None.

    Raises:
        ConfigError: the data contains a value of another type.
    """
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    _write_table(data, (), lines)
    return "\n".join(lines) + "\n"


def _write_table(data: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    values = {k: v for k, v in data.items() if v is not None and not _is_table(v)}
    lines += [f"{_format_key(key)} = {_format_value(value)}" for key, value in values.items()]
    for key, value in data.items():
        if value is None or not _is_table(value):
            continue
        several = isinstance(value, list)
        name = ".".join(_format_key(part) for part in (*path, key))
        for one in value if several else [value]:
            lines += ["", f"[[{name}]]" if several else f"[{name}]"]
            _write_table(one, (*path, key), lines)


def _is_table(value: Any) -> bool:
    """Return whether a value is a table or a list of tables, which TOML needs after the plain values."""
    if isinstance(value, Mapping):
        return True
    return isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) for one in value)


def _format_key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _format_text(key)


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _format_number(value)
    if isinstance(value, str):
        return _format_text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_format_value, value))}]"
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(f"{_format_key(k)} = {_format_value(v)}" for k, v in value.items() if v is not None)
            + "}"
        )
    raise ConfigError(f"{type(value).__name__} cannot be written as TOML")


def _format_number(value: float) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    text = repr(value)
    return text if any(c in text for c in ".e") else f"{text}.0"


def _format_text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError("half a surrogate pair cannot be written as TOML") from None
    return '"' + "".join(_escape_character(c) for c in value) + '"'


def _escape_character(c: str) -> str:
    return _ESCAPES.get(c) or (f"\\u{ord(c):04x}" if ord(c) < 32 or ord(c) == 127 else c)
