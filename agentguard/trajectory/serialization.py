"""Lossless conversion of runs to and from JSON data, for the event log and other formats with our fields.

Fields with their default value are omitted. ``decode_*`` functions read untrusted data: a malformed value is
a FormatError that names the field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from agentguard.trajectory._json_node import JsonNode, parse_integer
from agentguard.trajectory.model import (
    Annotation,
    Observation,
    RootCause,
    Source,
    Step,
    ToolCall,
    ToolSpec,
    Trajectory,
    Usage,
)


def encode_step(step: Step) -> dict[str, Any]:
    """Return a step as JSON data."""
    data = _encode_fields(step)
    _encode_items(data, "tool_calls", _encode_fields)
    _encode_items(data, "observations", _encode_fields)
    if step.usage is not None:
        data["usage"] = _encode_fields(step.usage)
    return data


def decode_step(node: JsonNode) -> Step:
    """Decode a step from JSON data."""
    return Step(
        index=node.integer("index"),
        source=decode_source(node),
        agent=node.text("agent"),
        content=node.text_or("content"),
        reasoning=node.text_or("reasoning"),
        modules=decode_text_mapping(node.node_or("modules")),
        tool_calls=tuple(_decode_call(one) for one in node.nodes_or("tool_calls")),
        observations=tuple(_decode_observation(one) for one in node.nodes_or("observations")),
        started_at=node.number_or("started_at"),
        ended_at=node.number_or("ended_at"),
        usage=_decode_usage(node.node("usage")) if "usage" in node else None,
        model=node.text("model") if "model" in node else None,
        source_index=node.integer_or("source_index"),
        extra=node.node_or("extra").data,
    )


def decode_source(node: JsonNode) -> Source:
    """Decode the ``source`` of a step."""
    value = node.text("source")
    if value not in set(Source):
        raise node.build_error("source", f"expected one of {', '.join(Source)}")
    return Source(value)


def decode_text_mapping(node: JsonNode) -> dict[str, str]:
    """Decode an object whose values are all text."""
    return {key: node.text(key) for key in node.data}


def encode_meta(trajectory: Trajectory) -> dict[str, Any]:
    """Return a trajectory without its steps and branches as JSON data."""
    data = _encode_fields(trajectory)
    data.pop("steps", None)
    data.pop("branches", None)
    _encode_items(data, "tools", _encode_fields)
    return data


def decode_meta(node: JsonNode) -> Trajectory:
    """Decode a trajectory without steps from the output of `encode_meta`."""
    return Trajectory(
        id=node.text("id"),
        format=node.text("format"),
        task=node.text("task"),
        steps=(),
        tools=tuple(_decode_tool(one) for one in node.nodes_or("tools")),
        system_prompts=decode_text_mapping(node.node_or("system_prompts")),
        extra=node.node_or("extra").data,
    )


def encode_annotation(annotation: Annotation) -> dict[str, Any]:
    """Return an annotation as JSON data; an empty annotation is empty data."""
    data = _encode_fields(annotation)
    if annotation.root_cause is not None:
        data["root_cause"] = _encode_root_cause(annotation.root_cause)
    _encode_items(data, "failures", _encode_root_cause)
    if annotation.step_labels:
        data["step_labels"] = {str(step): label for step, label in annotation.step_labels.items()}
    return data


def decode_annotation(node: JsonNode) -> Annotation:
    """Decode an annotation from JSON data."""
    labels, modes = node.node_or("step_labels"), node.node_or("modes")
    return Annotation(
        failed=node.boolean_or("failed"),
        root_cause=_decode_root_cause(node.node("root_cause")) if "root_cause" in node else None,
        failures=tuple(_decode_root_cause(one) for one in node.nodes_or("failures")),
        step_labels={parse_integer(key, labels.field_path(key)): labels.integer(key) for key in labels.data},
        modes={key: modes.boolean(key) for key in modes.data},
        answer=node.text("answer") if "answer" in node else None,
        group=node.text("group") if "group" in node else None,
        extra=node.node_or("extra").data,
    )


def _encode_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their default, one level deep."""
    data = {}
    for name, default in _field_defaults(type(value)):
        item = getattr(value, name)
        if item is not default and (default is MISSING or item != default):
            plain = type(item) in _SCALARS or not isinstance(item, Mapping)
            data[name] = item if plain else dict(item)
    return data


_SCALARS = frozenset({str, int, float, bool, tuple, Source, type(None)})
"""Types of most fields; an ``isinstance`` check for `Mapping` would dominate the run time."""

_FIELD_DEFAULTS: dict[type, tuple[tuple[str, Any], ...]] = {}


def _field_defaults(kind: type) -> tuple[tuple[str, Any], ...]:
    if kind not in _FIELD_DEFAULTS:
        _FIELD_DEFAULTS[kind] = tuple(
            (one.name, one.default if one.default_factory is MISSING else one.default_factory())
            for one in fields(kind)
        )
    return _FIELD_DEFAULTS[kind]


def _encode_items(data: dict[str, Any], key: str, encode: Callable[[Any], dict[str, Any]]) -> None:
    if key in data:
        data[key] = [encode(one) for one in data[key]]


def _encode_root_cause(cause: RootCause) -> dict[str, Any]:
    data = _encode_fields(cause)
    if cause.codes:
        data["codes"] = list(cause.codes)
    return data


def _decode_root_cause(node: JsonNode) -> RootCause:
    return RootCause(
        step=node.integer_or("step"),
        agent=_decode_optional_text(node, "agent"),
        module=_decode_optional_text(node, "module"),
        codes=tuple(_decode_text_list(node, "codes")),
        reason=node.text_or("reason"),
    )


def _decode_call(node: JsonNode) -> ToolCall:
    return ToolCall(
        id=node.text("id"),
        name=node.text_or("name"),
        arguments=node.node("arguments").data if "arguments" in node else None,
        raw_arguments=_decode_optional_text(node, "raw_arguments"),
        extra=node.node_or("extra").data,
    )


def _decode_observation(node: JsonNode) -> Observation:
    return Observation(
        content=node.text("content"),
        call_id=_decode_optional_text(node, "call_id"),
        tool=_decode_optional_text(node, "tool"),
        is_error=node.boolean_or("is_error"),
        extra=node.node_or("extra").data,
    )


def _decode_usage(node: JsonNode) -> Usage:
    return Usage(
        prompt_tokens=node.integer_or("prompt_tokens"),
        completion_tokens=node.integer_or("completion_tokens"),
        cached_tokens=node.integer_or("cached_tokens"),
        cost_usd=node.number_or("cost_usd"),
    )


def _decode_tool(node: JsonNode) -> ToolSpec:
    return ToolSpec(
        name=node.text_or("name"),
        description=node.text_or("description"),
        parameters=node.node_or("parameters").data,
        extra=node.node_or("extra").data,
    )


def _decode_optional_text(node: JsonNode, key: str) -> str | None:
    return node.text(key) if node.raw(key) is not None else None


def _decode_text_list(node: JsonNode, key: str) -> Iterable[str]:
    for i, value in enumerate(node.items_or(key)):
        if not isinstance(value, str):
            raise node.build_error(f"{key}[{i}]", "expected text")
        yield value
