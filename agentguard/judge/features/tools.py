"""What a tool does, told from its name: verbs of changing and of looking, whatever the domain."""

from __future__ import annotations

import re

_CHANGES = re.compile(
    r"(?:book|update|cancel|send|modify|return|exchange|create|delete|add|remove|set|put|insert|open|close"
    r"|take|drop|write|edit|post|buy|pay|move|submit|go|unlock|lock|cook|use|click|type)"
)
_LOOKS = re.compile(
    r"(?:get|search|list|find|calculate|think|look|read|fetch|query|check|show|inventory|examine|view)"
)


def changes(name: str) -> bool:
    """Whether a tool's name begins with a verb of changing something."""
    return bool(_CHANGES.match(name.lower()))


def looks(name: str) -> bool:
    """Whether a tool's name begins with a verb of looking."""
    return not changes(name) and bool(_LOOKS.match(name.lower()))
