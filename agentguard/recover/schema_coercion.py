"""Conversion of values to types that a JSON Schema permits (type, enum, const, anyOf, oneOf)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import orjson

from agentguard.detect._text import normalize_text
from agentguard.detect.step_facts import canonicalize_json

_MAX_DEPTH = 6
_INTEGER = re.compile(r"[+-]?\d{1,15}(?:\.0{1,6})?")
_NUMBER = re.compile(r"[+-]?(?:\d{1,15}(?:\.\d{1,15})?|\.\d{1,15})(?:[eE][+-]?\d{1,2})?")
_BOOLEANS = {"true": True, "false": False}


def list_readings(
    value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0
) -> list[Any]:
    """Return the readings of ``value`` under a schema: the value itself if permitted, or its conversions.

    Args:
        value: a JSON value.
        schema: schema of the value; references are resolved in ``root``.
        root: the whole schema.
        depth: depth of nesting; values deeper than the sixth level are not converted.

    Returns:
        An empty list if the value cannot be converted, one reading if it is unambiguous, otherwise several.
    """
    rule = resolve_reference(schema, root)
    if depth > _MAX_DEPTH or not rule:
        return [value]
    branches = rule.get("anyOf") or rule.get("oneOf")
    if branches:
        return _coerce_branches(value, branches, root, depth)
    if "enum" in rule or "const" in rule:
        return _coerce_enum(value, rule.get("enum") or [rule.get("const")])
    kinds = rule.get("type")
    names = [kinds] if isinstance(kinds, str) else list(kinds or ())
    if not names or any(_has_type(value, name) for name in names):
        return [_coerce_nested(value, rule, root, depth)]
    found = [converted for name in names if (converted := _convert(value, name)) is not None]
    return [_coerce_nested(one, rule, root, depth) for one in _deduplicate(found)]


def coerce_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments converted to the types of a tool's schema; ambiguous values remain unchanged."""
    readings = list_readings(arguments, schema, schema)
    is_single = len(readings) == 1 and isinstance(readings[0], Mapping)
    return readings[0] if is_single else arguments


def resolve_reference(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolve the local references of a schema; return an empty schema if one is broken or circular."""
    for _ in range(_MAX_DEPTH):
        target = schema.get("$ref") if isinstance(schema, Mapping) else None
        if target is None:
            return schema if isinstance(schema, Mapping) else {}
        found: Any = root
        for part in str(target).removeprefix("#").strip("/").split("/"):
            found = found.get(part) if isinstance(found, Mapping) else None
        beside = {key: item for key, item in schema.items() if key != "$ref"}
        schema = {**found, **beside} if isinstance(found, Mapping) else {}
    return {}


def _coerce_branches(value: Any, branches: list[Any], root: Mapping[str, Any], depth: int) -> list[Any]:
    each = [list_readings(value, branch, root, depth + 1) for branch in branches]
    if any(_is_same_json(one, value) for found in each for one in found):
        return [value]
    return _deduplicate([one for found in each for one in found])


def _coerce_enum(value: Any, allowed: list[Any]) -> list[Any]:
    if any(_is_same_json(value, one) for one in allowed):
        return [value]
    text = normalize_text(value) if isinstance(value, str) else canonicalize_json(value)
    alike = [
        one
        for one in allowed
        if normalize_text(one if isinstance(one, str) else canonicalize_json(one)) == text
    ]
    return _deduplicate(alike)


def _coerce_nested(value: Any, rule: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    """Return the value with those nested values converted that have exactly one reading."""
    if isinstance(value, Mapping):
        properties = rule.get("properties") or {}
        return {
            name: _get_single(list_readings(item, properties[name], root, depth + 1), item)
            if name in properties
            else item
            for name, item in value.items()
        }
    items = rule.get("items")
    if isinstance(value, list) and isinstance(items, Mapping):
        return [_get_single(list_readings(item, items, root, depth + 1), item) for item in value]
    return value


def _get_single(found: list[Any], value: Any) -> Any:
    return found[0] if len(found) == 1 else value


def _has_type(value: Any, kind: str) -> bool:
    if kind == "integer":
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        return is_whole and not isinstance(value, bool)
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    types: dict[str, Any] = {
        "string": str,
        "boolean": bool,
        "array": list | tuple,
        "object": Mapping,
        "null": type(None),
    }
    return isinstance(value, types.get(kind, ()))


def _convert(value: Any, kind: str) -> Any:
    """Return the value converted to another type; None if that is not possible."""
    if kind == "string":
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return canonicalize_json(value) if is_number else None
    if not isinstance(value, str):
        return None
    text = value.strip()
    if kind == "integer":
        return int(float(text)) if "." in text and _INTEGER.fullmatch(text) else _parse_integer(text)
    if kind == "number":
        number = float(text) if _NUMBER.fullmatch(text) else math.nan
        return None if not math.isfinite(number) else int(number) if number.is_integer() else number
    if kind == "boolean":
        return _BOOLEANS.get(text.lower())
    return _parse_json(text, kind)


def _parse_integer(text: str) -> int | None:
    return int(text) if _INTEGER.fullmatch(text) else None


def _parse_json(text: str, kind: str) -> Any:
    try:
        value = orjson.loads(text)
    except (orjson.JSONDecodeError, RecursionError):
        return None
    return value if kind in ("array", "object") and _has_type(value, kind) else None


def _is_same_json(a: Any, b: Any) -> bool:
    return type(a) is type(b) and canonicalize_json(a) == canonicalize_json(b)


def _deduplicate(values: list[Any]) -> list[Any]:
    return list({f"{type(one).__name__} {canonicalize_json(one)}": one for one in values}.values())
