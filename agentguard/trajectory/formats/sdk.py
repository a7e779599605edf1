"""Building blocks of importers; see docs/custom-formats.md.

- `JsonNode` reads fields; a wrong type is a FormatError that names the field.
- `parse_chat` converts chat messages to steps, `parse_chat_turn` those of one turn, `add_tool_results` a turn
  with the results that follow it, and `build_chat_messages` steps to messages.
- `StepBuilder` builds steps from turns and results; `StepBuilder.add_unknown` counts what the importer cannot
  read.
- `parse_content` sorts the content parts of all model APIs: texts, reasoning, calls, results, unknown parts.
- `parse_usage` reads token counts and cost in any known spelling.
- `parse_tool_specs` and `parse_arguments` parse tool definitions and arguments of calls.
- `loads` parses JSON text inside a record.
- `iter_values` and `read_document` read further files of a data set; the values are `SourceItem` objects.
- `split_labels` separates label fields from the facts of a run; `infer_failed` reads the outcome from them.
"""

from __future__ import annotations

from agentguard.trajectory.formats._chat_messages import (
    ParsedChat,
    add_tool_results,
    extract_content_text,
    parse_chat,
    parse_chat_turn,
    parse_tool_specs,
)
from agentguard.trajectory.formats._chat_writer import build_chat_messages, build_chat_tools
from agentguard.trajectory.formats._content_parts import ContentResult, MessageContent, parse_content
from agentguard.trajectory.formats._dataset_folder import iter_values, read_document
from agentguard.trajectory.formats._label_fields import infer_failed, split_labels
from agentguard.trajectory.formats._step_builder import StepBuilder
from agentguard.trajectory.formats.base import SourceItem
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.safe_json import loads, parse_arguments
from agentguard.trajectory.usage import parse_usage

__all__ = [
    "ContentResult",
    "JsonNode",
    "MessageContent",
    "ParsedChat",
    "SourceItem",
    "StepBuilder",
    "add_tool_results",
    "build_chat_messages",
    "build_chat_tools",
    "extract_content_text",
    "infer_failed",
    "iter_values",
    "loads",
    "parse_arguments",
    "parse_chat",
    "parse_chat_turn",
    "parse_content",
    "parse_tool_specs",
    "parse_usage",
    "read_document",
    "split_labels",
]
