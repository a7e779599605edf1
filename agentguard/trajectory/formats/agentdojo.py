"""AgentDojo runs: tool-calling runs with an attack in the data, and whether user and attacker succeeded.

A file is ``{suite_name, pipeline_name, user_task_id, injection_task_id, attack_type, injections, messages,
error, utility, security, duration}``. A call is ``{id, function, args}``. The run failed if ``utility`` is
false. ``utility``, ``security`` and all fields of the attack are in the annotation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentguard.trajectory.formats._chat_messages import build_chat_call, drop_none, parse_chat
from agentguard.trajectory.formats._content_parts import parse_content
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Annotation, Record, Trajectory

_FACTS = ("suite_name", "pipeline_name", "user_task_id", "duration", "error", "agentdojo_package_version")
_OMITTED_MESSAGE_FIELDS = ("tool_calls", "tool_call", "content", "error")


class AgentDojo:
    """Importer of AgentDojo's runs."""

    name = "agentdojo"
    summary = "AgentDojo runs: tool calls under attack, with utility and security"

    def score_match(self, value: Any) -> float:
        """Return a positive score for messages with a suite and a user task beside them."""
        if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
            return 0.0
        return 0.99 if {"suite_name", "user_task_id"} <= value.keys() else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of a file. Raises FormatError with the field."""
        node = JsonNode.from_value(value)
        chat = parse_chat([_convert_message(one) for one in node.nodes("messages")], agent="agent")
        keys = ("suite_name", "user_task_id", "attack_type", "injection_task_id", "pipeline_name")
        parts = [node.scalar(key) for key in keys if key in node]
        utility = node.boolean_or("utility")
        yield Record(
            trajectory=Trajectory(
                id="/".join(parts) or name,
                format=self.name,
                task=chat.task,
                steps=chat.steps,
                system_prompts=chat.system_prompts,
                exit_status="error" if "error" in node else None,
                unknown_parts=chat.unknown_parts,
                extra={key: node.raw(key) for key in _FACTS if key in node},
            ),
            annotation=Annotation(
                failed=None if utility is None else not utility,
                group="/".join(parts[:2]) or None,
                extra=node.extra_fields("messages", *_FACTS),
            ),
        )


def _convert_message(message: JsonNode) -> dict[str, Any]:
    data = drop_none(message.extra_fields(*_OMITTED_MESSAGE_FIELDS))
    data["content"] = _convert_content(message.raw("content"))
    if message.raw("role") == "tool":
        error = message.raw("error")
        call = message.node_or("tool_call")
        data |= drop_none({"name": call.raw("function"), "is_error": True if error else None})
        # AgentDojo writes a text part without text beside an error.
        content = parse_content(data["content"], message.field_path("content"))
        if not content.text.strip():
            unknown = [{"type": kind} for kind in content.unknown_parts]
            data["content"] = [*unknown, {"type": "text", "text": error}] if unknown else error or ""
    elif calls := [
        build_chat_call(call.raw("id"), call.text("function"), call.raw("args"))
        for call in message.nodes_or("tool_calls")
    ]:
        data["tool_calls"] = calls
    return data


def _convert_content(content: Any) -> Any:
    """Return content whose parts have their text in ``text``; AgentDojo writes it into ``content``."""
    if not isinstance(content, list):
        return content
    return [
        {"type": part.get("type", "text"), "text": part["content"]}
        if isinstance(part, dict) and isinstance(part.get("content"), str)
        else part
        for part in content
    ]


FORMAT = AgentDojo()
