"""Steps as JSON for ``gen_ai.input.messages``, ``gen_ai.output.messages`` and similar attributes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from agentguard.trajectory.model import Source, Step, ToolCall, ToolSpec


def to_json_text(value: Any) -> str:
    """Return plain data as JSON text; a value without a JSON form is converted to text."""
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError):  # half a surrogate pair, a huge number
        import json

        return json.dumps(value, default=str)


def format_output_messages(step: Step) -> str:
    """Return the output of an agent's step as one message: reasoning, text and tool calls."""
    parts: list[dict[str, Any]] = []
    if step.reasoning:
        parts.append({"type": "reasoning", "content": step.reasoning})
    if step.content:
        parts.append({"type": "text", "content": step.content})
    parts += [_build_call_part(call) for call in step.tool_calls]
    ended = step.stop_reason or ("tool_call" if step.tool_calls else "stop")
    return to_json_text([{"role": "assistant", "parts": parts, "finish_reason": ended}])


def format_input_messages(steps: Iterable[Step]) -> str:
    """Return the input since the agent's last step: texts of other sources, and tool results."""
    messages: list[dict[str, Any]] = []
    for step in steps:
        if step.source is not Source.AGENT and step.content:
            role = "system" if step.source is Source.SYSTEM else "user"
            messages.append({"role": role, "parts": [{"type": "text", "content": step.content}]})
        for observation in step.observations:
            part: dict[str, Any] = {"type": "tool_call_response", "response": observation.content}
            if observation.call_id is not None:
                part["id"] = observation.call_id
            messages.append({"role": "tool", "parts": [part]})
    return to_json_text(messages) if messages else ""


def format_task_message(task: str) -> str:
    """Return the task as the first message of the run."""
    return to_json_text([{"role": "user", "parts": [{"type": "text", "content": task}]}])


def format_system_instructions(prompt: str) -> str:
    """Return a system prompt for ``gen_ai.system_instructions``."""
    return to_json_text([{"type": "text", "content": prompt}])


def format_tool_definitions(tools: Sequence[ToolSpec]) -> str:
    """Return tools for ``gen_ai.tool.definitions``."""
    return to_json_text(
        [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
            }
            for tool in tools
        ]
    )


def format_arguments(call: ToolCall) -> str:
    """Return the arguments of a call as recorded text, or else as JSON."""
    if call.raw_arguments is not None:
        return call.raw_arguments
    return "" if call.arguments is None else to_json_text(dict(call.arguments))


def _build_call_part(call: ToolCall) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "tool_call", "id": call.id, "name": call.name}
    if call.raw_arguments is not None:
        part["arguments"] = call.raw_arguments
    elif call.arguments is not None:
        part["arguments"] = dict(call.arguments)
    return part
