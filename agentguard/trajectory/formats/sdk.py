"""What an importer of one's own is built from; see docs/formats.md.

`Node` reads fields and turns every wrong type into a FormatError that names the field; `parse_chat` turns
chat messages into steps, `add_tool_results` a turn and the results that followed it, `build_chat_messages` steps into
messages; `tool_specs` and `parse_arguments` read what calls are made of; `loads` parses JSON text that stands
inside a record; `part` moves what tells how a run was judged out of its facts.
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
