"""Write TOML: as much of it as a manifest needs (``tomllib`` reads but does not write)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from agentguard.errors import ConfigError

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def dumps(data: Mapping[str, Any], *, comment: str = "") -> str:
    """Text, numbers, booleans, lists, and tables of these, as TOML 1.0; None is left out.

    Raises:
        ConfigError: there is something else in it.
    """
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    _table(data, (), lines)
    return "\n".join(lines) + "\n"


def _table(data: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    plain = {k: v for k, v in data.items() if v is not None and not _is_below(v)}
    lines += [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    for key, value in data.items():
        if value is None or not _is_below(value):
            continue
        several = isinstance(value, list)
        name = ".".join(_key(part) for part in (*path, key))
        for one in value if several else [value]:
            lines += ["", f"[[{name}]]" if several else f"[{name}]"]
            _table(one, (*path, key), lines)


def _is_below(value: Any) -> bool:
    """Whether a value is written behind the plain ones: a table, or a list of nothing but tables."""
    if isinstance(value, Mapping):
        return True
    return isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) for one in value)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None) + "}"
    raise ConfigError(f"{type(value).__name__} cannot be written as TOML")


def _number(value: float) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    text = repr(value)
    return text if any(c in text for c in ".e") else f"{text}.0"


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError("half a surrogate pair cannot be written as TOML") from None
    return '"' + "".join(_escaped(c) for c in value) + '"'


def _escaped(c: str) -> str:
    return _ESCAPES.get(c) or (f"\\u{ord(c):04x}" if ord(c) < 32 or ord(c) == 127 else c)
