"""Classification of tools by name: tools that read, tools that change something, terminal tools."""

from __future__ import annotations

import re
from functools import lru_cache

_WRITE_VERBS = frozenset((
    "book", "update", "cancel", "send", "modify", "return", "exchange", "create", "delete", "add", "remove",
    "set", "put", "insert", "open", "close", "take", "drop", "write", "edit", "post", "buy", "pay", "move",
    "go", "unlock", "lock", "cook", "use", "click", "type", "replace", "upload", "rename", "apply",
    "reply", "refund", "schedule", "register", "enable", "disable", "toggle", "append", "save", "publish",
    "eat", "chop", "slice", "fry", "grill", "roast", "prepare",
))  # fmt: skip
_READ_VERBS = frozenset((
    "get", "search", "list", "find", "calculate", "think", "look", "read", "fetch", "query", "check", "show",
    "inventory", "examine", "view", "grep", "glob", "ls", "cat", "browse", "retrieve", "lookup", "describe",
    "inspect", "count", "extract",
))  # fmt: skip
_TERMINAL_PATTERN = re.compile(
    r"(?:submit(?:_(?:answer|final_answer|result|task|solution))?|finish(?:_task|ed)?|done|exit|end|stop"
    r"|terminate|complete_task|task_(?:complete|completed|done|finished)|final_(?:answer|result|response)"
    r"|answer|attempt_completion|transfer_to_human\w*|hand_?off_to_human\w*|escalate_to_human\w*)\Z"
)
_HANDOFF_PATTERN = re.compile(r"(?:transfer|hand_?off|escalate)_to_human\w*\Z")
_PREFIX_PATTERN = re.compile(r".*(?:__|[./:])")
_CAMEL_PATTERN = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SEPARATOR_PATTERN = re.compile(r"[^a-z0-9]+")


@lru_cache(maxsize=4_096)
def is_write_tool(name: str) -> bool:
    """Return whether the first verb of a tool's name is a verb of change."""
    return _find_verb(name) in _WRITE_VERBS and not is_terminal_tool(name)


@lru_cache(maxsize=4_096)
def is_read_tool(name: str) -> bool:
    """Return whether the first verb of a tool's name is a verb of reading."""
    return _find_verb(name) in _READ_VERBS and not is_terminal_tool(name)


@lru_cache(maxsize=4_096)
def is_terminal_tool(name: str) -> bool:
    """Return whether a tool ends the run, such as "submit", "finish" or "transfer_to_human_agents"."""
    return _TERMINAL_PATTERN.match(normalize_tool_name(name)) is not None


@lru_cache(maxsize=4_096)
def is_handoff_tool(name: str) -> bool:
    """Return whether a tool hands the run to a person, such as "transfer_to_human_agents"."""
    return _HANDOFF_PATTERN.match(normalize_tool_name(name)) is not None


@lru_cache(maxsize=4_096)
def normalize_tool_name(name: str) -> str:
    """Return a name in snake case without its server: "read_file" for "mcp__files__readFile"."""
    bare = _PREFIX_PATTERN.sub("", name[:200])
    return _SEPARATOR_PATTERN.sub("_", _CAMEL_PATTERN.sub("_", bare).lower()).strip("_")


def _find_verb(name: str) -> str:
    words = normalize_tool_name(name).split("_")
    return next((word for word in words if word in _WRITE_VERBS or word in _READ_VERBS), "")
