"""Lossless conversion of runs to and from JSON data, for the event log and other formats with our fields.

Fields with their default value are omitted. ``decode_*`` functions read untrusted data: a malformed value is
a FormatError that names the field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache, partial
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from agentguard.trajectory.json_node import JsonNode, parse_integer
from agentguard.trajectory.model import Annotation, Step, ToolCall, ToolSpec, Trajectory

T = TypeVar("T")
_Reader = Callable[[JsonNode, str], Any]
_SCALARS = (str, int, float)
"""Types of most fields; an ``isinstance`` check for `Mapping` would dominate the run time."""
_SCALAR_READERS: dict[Any, _Reader] = {
    str: JsonNode.text,
    int: JsonNode.integer,
    float: JsonNode.number,
    bool: JsonNode.boolean,
    Any: JsonNode.raw,
}


def encode_step(step: Step) -> dict[str, Any]:
    """Return a step as JSON data; `decode_step` is the inverse."""
    data = encode_fields(step)
    _encode_items(data, "tool_calls", encode_fields)
    _encode_items(data, "observations", encode_fields)
    if step.usage is not None:
        data["usage"] = encode_fields(step.usage)
    return data


def decode_step(node: JsonNode) -> Step:
    """Return a step from the output of `encode_step`. Raises FormatError."""
    return decode_dataclass(
        Step, node, tool_calls=tuple(_decode_call(one) for one in node.nodes_or("tool_calls"))
    )


def encode_meta(trajectory: Trajectory) -> dict[str, Any]:
    """Return a trajectory without its steps and branches as JSON data."""
    data = encode_fields(trajectory)
    data.pop("steps", None)
    data.pop("branches", None)
    _encode_items(data, "tools", encode_fields)
    return data


def decode_meta(node: JsonNode) -> Trajectory:
    """Return a trajectory without steps from the output of `encode_meta`. Raises FormatError."""
    tools = tuple(_decode_tool(one) for one in node.nodes_or("tools"))
    return decode_dataclass(Trajectory, node, steps=(), branches=(), tools=tools)


def encode_annotation(annotation: Annotation) -> dict[str, Any]:
    """Return an annotation as JSON data; an empty annotation is empty data."""
    data = encode_fields(annotation)
    if annotation.root_cause is not None:
        data["root_cause"] = encode_fields(annotation.root_cause)
    _encode_items(data, "failures", encode_fields)
    if annotation.step_labels:
        data["step_labels"] = {str(step): label for step, label in annotation.step_labels.items()}
    return data


def decode_annotation(node: JsonNode) -> Annotation:
    """Return an annotation from the output of `encode_annotation`. Raises FormatError."""
    return decode_dataclass(Annotation, node)


def _encode_items(data: dict[str, Any], key: str, encode: Callable[[Any], dict[str, Any]]) -> None:
    if key in data:
        data[key] = [encode(one) for one in data[key]]


def _decode_call(node: JsonNode) -> ToolCall:
    return decode_dataclass(ToolCall, node, name=node.text_or("name"))


def _decode_tool(node: JsonNode) -> ToolSpec:
    return decode_dataclass(ToolSpec, node, name=node.text_or("name"))


def encode_fields(value: Any) -> dict[str, Any]:
    """Return the non-default fields of a dataclass, one level deep; tuples become lists."""
    kind: type = type(value)
    names, defaults, get_items = _read_defaults(kind)
    data = {}
    for name, default, item in zip(names, defaults, get_items(value), strict=True):
        if item is not default and (default is MISSING or item != default):
            if type(item) is tuple:
                item = list(item)
            elif not isinstance(item, _SCALARS) and isinstance(item, Mapping):
                item = dict(item)
            data[name] = item
    return data


def decode_dataclass(kind: type[T], node: JsonNode, **decoded: Any) -> T:
    """Decode a dataclass from JSON data; an absent or null field has its default.

    Args:
        kind: a dataclass with fields of text, numbers, enumerations, mappings, tuples and dataclasses.
        node: the JSON data.
        decoded: fields that the caller has decoded itself.

    Raises:
        FormatError: a required field is missing, or a value has another type; names the field.
    """
    data, owner = node.data, cast(type, kind)
    for name, read_field, is_required in _read_schema(owner):
        if name not in decoded and (is_required or data.get(name) is not None):
            decoded[name] = read_field(node, name)
    return kind(**decoded)


def decode_texts(node: JsonNode, key: str) -> tuple[str, ...]:
    """Return a list of texts; empty if the field is absent."""
    items = node.items_or(key)
    for place, value in enumerate(items):
        if not isinstance(value, str):
            raise node.build_error(f"{key}[{place}]", "expected text")
    return tuple(items)


class _Field(NamedTuple):
    name: str
    read: _Reader
    is_required: bool


@cache
def _read_defaults(kind: type) -> tuple[tuple[str, ...], tuple[Any, ...], Callable[[Any], tuple[Any, ...]]]:
    """Return the names and defaults of the fields, and a function that returns all values of an instance."""
    owned = fields(kind)
    names = tuple(one.name for one in owned)
    defaults = tuple(
        one.default if one.default_factory is MISSING else one.default_factory() for one in owned
    )
    if len(names) < 2:  # attrgetter returns a tuple for two names or more
        return names, defaults, lambda value: tuple(getattr(value, name) for name in names)
    return names, defaults, attrgetter(*names)


@cache
def _read_schema(kind: type) -> tuple[_Field, ...]:
    hints = get_type_hints(kind)
    return tuple(
        _Field(one.name, _build_reader(hints[one.name]), one.default is one.default_factory is MISSING)
        for one in fields(kind)
    )


def _build_reader(hint: Any) -> _Reader:
    """Return the function that reads a field of this type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _SCALAR_READERS:
        return _SCALAR_READERS[hint]
    if origin in (Union, UnionType):
        (inner,) = (one for one in arguments if one is not NoneType)
        return partial(_read_optional, _build_reader(inner))
    if origin is tuple:
        return decode_texts if arguments[0] is str else partial(_read_tuple, arguments[0])
    if origin is Mapping:
        return partial(_read_mapping, arguments[0] is int, _build_reader(arguments[1]))
    if is_dataclass(hint):
        return partial(_read_dataclass, hint)
    if issubclass(hint, StrEnum):
        return partial(_read_choice, hint)
    raise TypeError(f"no JSON form of {hint}")


def _read_optional(read: _Reader, node: JsonNode, key: str) -> Any:
    return read(node, key) if key in node else None


def _read_tuple(kind: Any, node: JsonNode, key: str) -> tuple[Any, ...]:
    return tuple(decode_dataclass(kind, one) for one in node.nodes(key))


def _read_mapping(has_integer_keys: bool, read: _Reader, node: JsonNode, key: str) -> Mapping[Any, Any]:
    inner = node.node(key)
    if read is JsonNode.raw:
        return inner.data
    if has_integer_keys:
        return {parse_integer(name, inner.field_path(name)): read(inner, name) for name in inner.data}
    return {name: read(inner, name) for name in inner.data}


def _read_dataclass(kind: Any, node: JsonNode, key: str) -> Any:
    return decode_dataclass(kind, node.node(key))


def _read_choice(kind: type[StrEnum], node: JsonNode, key: str) -> StrEnum:
    value = node.text(key)
    try:
        return kind(value)
    except ValueError:
        raise node.build_error(key, f"expected one of {', '.join(kind)}") from None
