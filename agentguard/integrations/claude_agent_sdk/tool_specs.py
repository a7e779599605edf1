"""Specifications and effects of the tools of in-process MCP servers (Claude Agent SDK)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from agentguard.recover.tool_effects import ToolEffect, read_stated_effect
from agentguard.trajectory.model import ToolSpec


def build_tool_specs(tools: Mapping[str, Sequence[Any]]) -> tuple[ToolSpec, ...]:
    """Return the specifications of tools, given by server; a tool's name is ``mcp__SERVER__TOOL``."""
    return tuple(
        ToolSpec(
            name=_format_name(server, tool),
            description=tool.description,
            parameters=_build_schema(tool.input_schema),
        )
        for server, own in tools.items()
        for tool in own
    )


def read_effects(tools: Mapping[str, Sequence[Any]]) -> dict[str, ToolEffect]:
    """Return the effects that the annotations of tools declare, by the name of the tool."""
    effects = {
        _format_name(server, tool): read_stated_effect(_to_mapping(tool.annotations))
        for server, own in tools.items()
        for tool in own
    }
    return {name: effect for name, effect in effects.items() if effect is not None}


def _format_name(server: str, tool: Any) -> str:
    return f"mcp__{server}__{tool.name}"


def _to_mapping(annotations: Any) -> Any:
    return annotations.model_dump(by_alias=True) if hasattr(annotations, "model_dump") else annotations


def _build_schema(input_schema: Any) -> Mapping[str, Any]:
    """Return the JSON Schema of a schema, a mapping of names to types, or a typed dictionary."""
    if not isinstance(input_schema, Mapping):
        return TypeAdapter(input_schema).json_schema()
    if isinstance(input_schema.get("type"), str) and "properties" in input_schema:
        return input_schema
    properties = {name: TypeAdapter(kind).json_schema() for name, kind in input_schema.items()}
    return {"type": "object", "properties": properties, "required": list(properties)}
