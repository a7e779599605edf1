"""Span data of the OpenAI Agents SDK as attributes of OpenTelemetry.

A ``generation`` span repeats the history of its agent. A ``response`` span has only the id of the response
unless the exporter adds the content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentguard.trajectory.usage import parse_usage


def read_span_data(value: Any) -> dict[str, Any]:
    """Return attributes for ``span_data``; empty if it is absent or of an unknown type."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or not isinstance(kind, str) or kind not in _READERS:
        return {}
    attributes = _READERS[kind](value)
    return {name: item for name, item in attributes.items() if item not in (None, "", [], {})}


def _read_model_call(data: Mapping[str, Any]) -> dict[str, Any]:
    response = data.get("response")
    response = response if isinstance(response, Mapping) else {}
    usage = parse_usage(data.get("usage") or response.get("usage"))
    return {
        "openinference.span.kind": "LLM",
        "gen_ai.response.model": data.get("model") or response.get("model"),
        "gen_ai.response.id": data.get("response_id"),
        "input.value": data.get("input"),
        "output.value": data.get("output") or response.get("output"),
        "gen_ai.usage.input_tokens": usage.prompt_tokens if usage else None,
        "gen_ai.usage.output_tokens": usage.completion_tokens if usage else None,
    }


def _read_tool_call(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "openinference.span.kind": "TOOL",
        "gen_ai.tool.name": data.get("name"),
        "gen_ai.tool.call.arguments": data.get("input"),
        "gen_ai.tool.call.result": data.get("output"),
    }


def _read_agent(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "openinference.span.kind": "AGENT",
        "gen_ai.agent.name": data.get("name"),
        "agent.data": dict(data),
    }


def _read_other(data: Mapping[str, Any]) -> dict[str, Any]:
    return {"openinference.span.kind": "CHAIN", "span_data": dict(data)}


_READERS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    **dict.fromkeys(("generation", "response"), _read_model_call),
    "function": _read_tool_call,
    "agent": _read_agent,
    **dict.fromkeys(("handoff", "guardrail", "custom", "mcp_tools", "task", "turn"), _read_other),
}
