"""Conversion of steps to OpenAI chat messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec, Trajectory
from agentguard.trajectory.safe_json import dumps

_SOURCE_ROLES = {
    Source.SYSTEM: "system",
    Source.USER: "user",
    Source.AGENT: "assistant",
    Source.ENVIRONMENT: "user",
}
_KNOWN_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def build_chat_messages(run: Trajectory) -> list[dict[str, Any]]:
    """Return the current branch as messages; system prompts that are not steps come first."""
    messages: list[dict[str, Any]] = []
    if not any(step.source is Source.SYSTEM for step in run.steps):
        for agent, text in run.system_prompts.items():
            messages.append({"role": "system", **({"name": agent} if agent else {}), "content": text})
    for step in run.steps:
        messages += _build_step_messages(step, restore_extra=run.format == "openai_chat")
    return messages


def build_chat_tools(tools: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """Return tool definitions in the form of the chat API."""
    return [_build_tool(spec) for spec in tools]


def _build_tool(spec: ToolSpec) -> dict[str, Any]:
    extra = dict(spec.extra)
    inner = extra.pop("function", {})
    function = {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
    fields = {key: value for key, value in function.items() if value or key == "name"}
    return {"type": "function", **extra, "function": fields | (inner if isinstance(inner, dict) else {})}


def _build_step_messages(step: Step, *, restore_extra: bool) -> Iterator[dict[str, Any]]:
    extra = dict(step.extra)
    role = extra.pop("role", None)
    if not isinstance(role, str) or not (restore_extra or role in _KNOWN_ROLES):
        role = _SOURCE_ROLES[step.source]
        if step.agent and step.agent not in (role, step.source):
            extra.setdefault("name", step.agent)
    message: dict[str, Any] = {"role": role, "content": step.content or None}
    if not step.content and not step.tool_calls:
        message["content"] = ""
    elif extra.get("refusal") == step.content:
        message["content"] = None
    if step.reasoning:
        message["reasoning_content"] = step.reasoning
    if step.stop_reason:
        message["stop_reason"] = step.stop_reason
    legacy = [call for call in step.tool_calls if call.extra.get("legacy") is True]
    if calls := [call for call in step.tool_calls if call not in legacy]:
        message["tool_calls"] = [_build_call(call) for call in calls]
    if legacy:
        message["function_call"] = _build_call(legacy[0])["function"]
    yield message | extra
    for observation in step.observations:
        yield _build_result(observation, legacy=any(call.id == observation.call_id for call in legacy))


def _build_call(call: ToolCall) -> dict[str, Any]:
    extra = {key: value for key, value in call.extra.items() if key != "legacy"}
    inner = extra.pop("function", {})
    raw = call.raw_arguments
    text = raw if raw is not None else "" if call.arguments is None else dumps(call.arguments).decode()
    function = {"name": call.name, "arguments": text} | (inner if isinstance(inner, dict) else {})
    return {"id": call.id, "type": "function", "function": function, **extra}


def _build_result(observation: Observation, *, legacy: bool) -> dict[str, Any]:
    if legacy:
        return {
            "role": "function",
            "name": observation.tool,
            "content": observation.content,
            **observation.extra,
        }
    ids = {"tool_call_id": observation.call_id} if observation.call_id is not None else {}
    errors = {"is_error": observation.is_error} if observation.is_error is not None else {}
    return {"role": "tool", **ids, "content": observation.content, **errors, **observation.extra}
