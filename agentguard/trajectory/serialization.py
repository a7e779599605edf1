"""Lossless conversion of runs to and from JSON data, for the event log and other formats with our fields.

Fields with their default value are omitted. ``decode_*`` functions read untrusted data: a malformed value is
a FormatError that names the field.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentguard.trajectory._json_node import JsonNode
from agentguard.trajectory.json_codec import decode_dataclass, encode_fields
from agentguard.trajectory.model import Annotation, Step, ToolCall, ToolSpec, Trajectory


def encode_step(step: Step) -> dict[str, Any]:
    """Return a step as JSON data."""
    data = encode_fields(step)
    _encode_items(data, "tool_calls", encode_fields)
    _encode_items(data, "observations", encode_fields)
    if step.usage is not None:
        data["usage"] = encode_fields(step.usage)
    return data


def decode_step(node: JsonNode) -> Step:
    """Decode a step from JSON data."""
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
    """Decode a trajectory without steps from the output of `encode_meta`."""
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
    """Decode an annotation from JSON data."""
    return decode_dataclass(Annotation, node)


def _encode_items(data: dict[str, Any], key: str, encode: Callable[[Any], dict[str, Any]]) -> None:
    if key in data:
        data[key] = [encode(one) for one in data[key]]


def _decode_call(node: JsonNode) -> ToolCall:
    return decode_dataclass(ToolCall, node, name=node.text_or("name"))


def _decode_tool(node: JsonNode) -> ToolSpec:
    return decode_dataclass(ToolSpec, node, name=node.text_or("name"))
