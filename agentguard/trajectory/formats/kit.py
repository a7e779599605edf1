"""What an importer of one's own is built from; see docs/formats.md.

`Node` reads fields and turns every wrong type into a FormatError that names the field; `chat_run` turns
chat messages into steps, `with_results` a turn and the results that followed it, `chat_messages` steps into
messages; `tool_specs` and `parse_arguments` read what calls are made of; `loads` parses JSON text that stands
inside a record; `part` moves what tells how a run was judged out of its facts.
"""

from __future__ import annotations

from agentguard.trajectory.formats._chat import (
    ChatRun,
    chat_run,
    content_text,
    parse_arguments,
    tool_specs,
    with_results,
)
from agentguard.trajectory.formats._chat_dump import chat_messages, chat_tools
from agentguard.trajectory.formats._fields import Node
from agentguard.trajectory.formats._json import loads
from agentguard.trajectory.formats._judged import part

__all__ = [
    "ChatRun",
    "Node",
    "chat_messages",
    "chat_run",
    "chat_tools",
    "content_text",
    "loads",
    "parse_arguments",
    "part",
    "tool_specs",
    "with_results",
]
