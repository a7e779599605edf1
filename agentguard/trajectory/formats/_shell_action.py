"""Command lines of coding agents as tool calls.

A line is a call of ``bash``, unless its first word is a command that the agent's harness adds to the shell.
"""

from __future__ import annotations

import re

from agentguard.trajectory.model import ToolCall

SHELL_TOOL = "bash"
HARNESS_COMMANDS = frozenset(
    (
        *("open", "goto", "scroll_up", "scroll_down", "create", "edit", "insert", "append", "undo_edit"),
        *("search_dir", "search_file", "find_file", "filemap", "str_replace_editor", "view_image"),
        *("submit", "submit_flag", "exit_forfeit", "exit_cost", "exit_context", "exit_error", "exit_format"),
        *("skip", "decompile", "disassemble", "connect_start", "connect_sendline", "connect_exec"),
        *("connect_stop", "debug_start", "debug_exec", "debug_step", "debug_continue", "debug_stop"),
        *("debug_add_breakpoint", "open_site", "close_site", "click_mouse", "type_text", "think", "finish"),
    )
)
"""Commands of SWE-agent and its relatives that are not programs."""
_WORD_PATTERN = re.compile(r"[a-z]\w{0,63}")
_DECLARATION_PATTERN = re.compile(r"^([a-z]\w{0,63}):\n +docstring: ", re.MULTILINE)


def parse_shell_action(text: str, *, id: str, commands: frozenset[str] = HARNESS_COMMANDS) -> ToolCall | None:
    """Return the call of a command line; None if the text is blank.

    The complete line is the argument ``command``.
    """
    line = text.strip()
    if not line:
        return None
    word = _WORD_PATTERN.match(line)
    name = (
        word.group() if word and word.group() in commands and not _is_path(line, word.end()) else SHELL_TOOL
    )
    return ToolCall(id=id, name=name, arguments={"command": line})


def find_declared_commands(prompt: str) -> frozenset[str]:
    """Return the harness commands, with those that SWE-agent's system prompt declares."""
    return HARNESS_COMMANDS.union(_DECLARATION_PATTERN.findall(prompt))


def _is_path(line: str, end: int) -> bool:
    """Return True if the first word continues, as in ``open-file.sh`` or ``edit/run``."""
    return line[end : end + 1] not in ("", " ", "\t", "\n")
