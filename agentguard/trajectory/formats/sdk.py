"""Building blocks of importers; see docs/formats.md.

- `JsonNode` reads fields; a wrong type is a FormatError that names the field.
- `parse_chat` converts chat messages to steps, `add_tool_results` a turn with the results that follow it, and
  `build_chat_messages` steps to messages.
- `parse_tool_specs` and `parse_arguments` parse tool definitions and arguments of calls.
- `loads` parses JSON text inside a record.
- `split_labels` separates label fields from the facts of a run.
"""

from __future__ import annotations

from agentguard.trajectory._json_node import JsonNode
from agentguard.trajectory._safe_json import loads
from agentguard.trajectory.formats._chat_messages import (
    ParsedChat,
    add_tool_results,
    extract_content_text,
    parse_arguments,
    parse_chat,
    parse_tool_specs,
)
from agentguard.trajectory.formats._chat_writer import build_chat_messages, build_chat_tools
from agentguard.trajectory.formats._label_fields import split_labels

__all__ = [
    "JsonNode",
    "ParsedChat",
    "add_tool_results",
    "build_chat_messages",
    "build_chat_tools",
    "extract_content_text",
    "loads",
    "parse_arguments",
    "parse_chat",
    "parse_tool_specs",
    "split_labels",
]
