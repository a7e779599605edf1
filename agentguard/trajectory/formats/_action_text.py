"""Actions written as text, such as ``open src/main.py 12`` or ``search[red shoes]``, as tool calls."""

from __future__ import annotations

import re

from agentguard.errors import FormatError
from agentguard.trajectory._json_node import JsonNode
from agentguard.trajectory._safe_json import loads
from agentguard.trajectory.formats._content_parts import parse_arguments
from agentguard.trajectory.model import ToolCall

_WORD = re.compile(r"[\w./-]{1,64}")
_NAMED_PATTERN = re.compile(
    r"tool(?:_name)?:[ \t]*(?P<name>[\w.-]{1,80})\s*"
    r"(?:(?:parameters|arguments|args|input):\s*(?P<arguments>.*))?",
    re.DOTALL | re.IGNORECASE,
)


def parse_action_text(text: str, *, id: str) -> ToolCall | None:
    """Parse the tool call in ``text``; return None if the text is blank.

    A JSON object with a name is a call with arguments, and so are the lines ``tool: name`` and
    ``parameters: {…}``. Any other text is a command: its first word is the name of the tool (or ``act``
    if it begins with no word), the complete text is the argument ``command``.
    """
    action = text.strip()
    if not action:
        return None
    if named := _NAMED_PATTERN.fullmatch(action):
        arguments, raw = parse_arguments((named["arguments"] or "{}").strip(), "arguments")
        return ToolCall(id=id, name=named["name"], arguments=arguments, raw_arguments=raw)
    try:
        value = loads(action) if action.startswith("{") else None
    except FormatError:
        value = None
    name = value.get("name", value.get("tool")) if isinstance(value, dict) else None
    if isinstance(value, dict) and isinstance(name, str):
        node = JsonNode(value)
        key_of_arguments = next(
            (key for key in ("arguments", "parameters", "args", "input") if key in node), "arguments"
        )
        if isinstance(node.raw(key_of_arguments), str | dict):
            arguments, raw = parse_arguments(node.raw(key_of_arguments), key_of_arguments)
            return ToolCall(id=id, name=name, arguments=arguments, raw_arguments=raw)
        return ToolCall(
            id=id,
            name=name,
            arguments={} if key_of_arguments not in node else {key_of_arguments: node.raw(key_of_arguments)},
        )
    word = _WORD.match(action)
    return ToolCall(id=id, name=word.group() if word else "act", arguments={"command": action})
