"""OpenAI chat messages: ``{"messages": [...]}``, a bare list of messages, or JSON Lines of either.

Loggers of many frameworks write this format, so the object may have any further fields. Fields whose names
reveal a judgement are in the annotation, the others to ``extra``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentguard.trajectory.formats._chat_messages import is_chat_message, parse_chat, parse_tool_specs
from agentguard.trajectory.formats._chat_writer import build_chat_messages, build_chat_tools
from agentguard.trajectory.formats._label_fields import infer_failed, merge_labels, split_labels
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Annotation, Record, Trajectory

_MAX_SAMPLED_MESSAGES = 8


class OpenAIChat:
    """Importer and exporter of chat messages."""

    name = "openai_chat"
    summary = "OpenAI chat messages with tool calls (JSON, or JSON Lines of runs or of messages)"

    def score_match(self, value: Any) -> float:
        """Return a score for messages with a role; it is highest if tools are offered and called."""
        messages = value.get("messages") if isinstance(value, dict) else value
        if not isinstance(messages, list) or not messages:
            return 0.0
        sample = messages[:_MAX_SAMPLED_MESSAGES]
        envelope = value if isinstance(value, dict) else {}
        has_tools = isinstance(envelope.get("tools"), list) and not any("label" in key for key in envelope)
        has_tool_calls = any(isinstance(message, dict) and "tool_calls" in message for message in sample)
        likely = 0.96 if has_tools and has_tool_calls else 0.8 if has_tool_calls else 0.6
        return likely * sum(map(is_chat_message, sample)) / len(sample)

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of a list of messages or of an object that has one."""
        node = JsonNode({"messages": value}) if isinstance(value, list) else JsonNode.from_value(value)
        chat = parse_chat(node.items("messages"))
        extra, judged = split_labels(node.extra_fields("messages", "tools", "functions", "id"))
        yield Record(
            trajectory=Trajectory(
                id=node.scalar_or("id") or name,
                format=self.name,
                task=chat.task,
                steps=chat.steps,
                tools=parse_tool_specs(node.items_or("tools"), "tools")
                + parse_tool_specs(node.items_or("functions"), "functions"),
                system_prompts=chat.system_prompts,
                unknown_parts=chat.unknown_parts,
                extra=extra,
            ),
            annotation=Annotation(failed=infer_failed(judged), extra=judged),
        )

    def dump(self, record: Record, *, annotation: bool = False) -> dict[str, Any]:
        """Return ``{"id", "messages", "tools", ...}``; branches have no place here and are omitted.

        With ``annotation``, labels are written under their original names.
        """
        run = record.trajectory
        data: dict[str, Any] = {"id": run.id, "messages": build_chat_messages(run)}
        if run.tools:
            data["tools"] = build_chat_tools(run.tools)
        if run.format == self.name:
            data |= merge_labels(run.extra, record.annotation.extra if annotation else {})
        return data


FORMAT = OpenAIChat()
