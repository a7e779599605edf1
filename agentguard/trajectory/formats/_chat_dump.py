"""Steps back to OpenAI chat messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from agentguard.trajectory.formats._json import dumps
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec, Trajectory

_ROLES = {Source.SYSTEM: "system", Source.USER: "user", Source.AGENT: "assistant", Source.ENVIRONMENT: "user"}
_KNOWN = ("system", "developer", "user", "assistant", "tool", "function")


def chat_messages(run: Trajectory) -> list[dict[str, Any]]:
    """The live line as messages; system prompts that are no steps come first."""
    messages: list[dict[str, Any]] = []
    if not any(step.source is Source.SYSTEM for step in run.steps):
        for agent, text in run.system_prompts.items():
            messages.append({"role": "system", **({"name": agent} if agent else {}), "content": text})
    for step in run.steps:
        messages += _messages(step, own=run.format == "openai_chat")
    return messages


def chat_tools(tools: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """Tool definitions as the chat API has them."""
    return [_tool(spec) for spec in tools]


def _tool(spec: ToolSpec) -> dict[str, Any]:
    extra = dict(spec.extra)
    inner = extra.pop("function", {})
    function = {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
    kept = {key: value for key, value in function.items() if value or key == "name"}
    return {"type": "function", **extra, "function": kept | (inner if isinstance(inner, dict) else {})}


def _messages(step: Step, *, own: bool) -> Iterator[dict[str, Any]]:
    extra = dict(step.extra)
    role = extra.pop("role", None)
    if not isinstance(role, str) or not (own or role in _KNOWN):
        role = _ROLES[step.source]
        if step.agent and step.agent not in (role, step.source):
            extra.setdefault("name", step.agent)
    message: dict[str, Any] = {"role": role, "content": step.content or None}
    if not step.content and not step.tool_calls:
        message["content"] = ""
    elif extra.get("refusal") == step.content:
        message["content"] = None
    if step.reasoning:
        message["reasoning_content"] = step.reasoning
    legacy = [call for call in step.tool_calls if call.extra.get("legacy") is True]
    if calls := [call for call in step.tool_calls if call not in legacy]:
        message["tool_calls"] = [_call(call) for call in calls]
    if legacy:
        message["function_call"] = _call(legacy[0])["function"]
    yield message | extra
    for seen in step.observations:
        yield _result(seen, legacy=any(call.id == seen.call_id for call in legacy))


def _call(call: ToolCall) -> dict[str, Any]:
    extra = {key: value for key, value in call.extra.items() if key != "legacy"}
    inner = extra.pop("function", {})
    raw = call.raw_arguments
    text = raw if raw is not None else "" if call.arguments is None else dumps(call.arguments).decode()
    function = {"name": call.name, "arguments": text} | (inner if isinstance(inner, dict) else {})
    return {"id": call.id, "type": "function", "function": function, **extra}


def _result(seen: Observation, *, legacy: bool) -> dict[str, Any]:
    if legacy:
        return {"role": "function", "name": seen.tool, "content": seen.content, **seen.extra}
    ids = {"tool_call_id": seen.call_id} if seen.call_id is not None else {}
    return {"role": "tool", **ids, "content": seen.content, **seen.extra}
