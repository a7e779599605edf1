"""Anthropic messages and Bedrock Converse: the body of a request, or of a response.

Results of tools are content blocks of user messages. The system prompt is a field of the request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentguard.trajectory.formats._chat_messages import parse_chat
from agentguard.trajectory.formats._label_fields import infer_failed, split_labels
from agentguard.trajectory.formats._model_exchange import (
    RequestBody,
    parse_request_body,
    parse_response_body,
)
from agentguard.trajectory.formats._step_builder import add_unknown_parts
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Annotation, Record, Trajectory

_BLOCK_TYPES = ("tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use")
_BLOCK_KEYS = ("toolUse", "toolResult")
_READ_FIELDS = frozenset(
    {"messages", "system", "tools", "toolConfig", "id", "type", "role", "content", "usage", "stop_reason"}
)
_MAX_SAMPLED_MESSAGES = 8


class AnthropicMessages:
    """Importer of Anthropic messages."""

    name = "anthropic_messages"
    summary = "Anthropic messages and Bedrock Converse: bodies of requests and responses"

    def score_match(self, value: Any) -> float:
        """Return a positive score for a body of a response, or of a request that only these APIs accept."""
        if not isinstance(value, dict) or "response" in value:
            return 0.0
        if is_response_body(value):
            return 0.97
        return 0.97 if is_request_body(value) else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of a request or of a response."""
        node = JsonNode.from_value(value)
        message = parse_response_body(node.data, "") if is_response_body(node.data) else None
        body = (
            RequestBody(messages=[message], system="", tools=())
            if message is not None
            else parse_request_body(node)
        )
        chat = parse_chat(body.messages)
        facts, judged = split_labels(node.extra_fields(*_READ_FIELDS))
        yield Record(
            trajectory=Trajectory(
                id=node.scalar_or("id") or name,
                format=self.name,
                task=chat.task,
                steps=chat.steps,
                tools=body.tools,
                system_prompts={"": body.system} if body.system else chat.system_prompts,
                unknown_parts=add_unknown_parts(chat.unknown_parts, body.unknown_parts),
                extra=facts,
            ),
            annotation=Annotation(failed=infer_failed(judged), extra=judged),
        )


def is_response_body(value: Any) -> bool:
    """Return True for the body of a response."""
    if not isinstance(value, dict) or value.get("role") != "assistant":
        return False
    return (
        value.get("type") == "message" and "stop_reason" in value and isinstance(value.get("content"), list)
    )


def is_request_body(value: Any) -> bool:
    """Return True for the body of a request that Chat Completions would not accept."""
    messages = value.get("messages") if isinstance(value, dict) else None
    if not isinstance(messages, list) or not messages or "history" in value:
        return False
    if not all(isinstance(one, dict) and isinstance(one.get("role"), str) for one in messages):
        return False
    tools = value.get("tools")
    has_schema = isinstance(tools, list) and any(
        isinstance(tool, dict) and "input_schema" in tool for tool in tools
    )
    has_system = isinstance(value.get("system"), str | list) and all(
        one.get("role") != "system" for one in messages
    )
    return has_schema or has_system or "toolConfig" in value or any(map(_has_blocks, messages))


def _has_blocks(message: dict[str, Any]) -> bool:
    content = message.get("content")
    if not isinstance(content, list):
        return False
    parts = [part for part in content[:_MAX_SAMPLED_MESSAGES] if isinstance(part, dict)]
    return any(part.get("type") in _BLOCK_TYPES or any(key in part for key in _BLOCK_KEYS) for part in parts)


FORMAT = AnthropicMessages()
