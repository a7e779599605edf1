"""Parser of actions that an agent writes as text; each action becomes a tool call.

`parse_text_actions` finds the marked actions in a turn. `parse_action_text` parses one action, and
`parse_shell_action` one command line. The marks are those of OpenHands and SWE-smith (``<function=…>``),
Hermes (``<tool_call>``), CodeAct (``<execute_bash>``), ReAct (``Action: search[…]``), SWE-agent and
mini-swe-agent (fenced code). All searches take time linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from agentguard.errors import FormatError
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import ToolCall
from agentguard.trajectory.safe_json import loads, parse_arguments

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
_COMMAND_PATTERN = re.compile(r"[a-z]\w{0,63}")
_DECLARATION_PATTERN = re.compile(r"^([a-z]\w{0,63}):\n +docstring: ", re.MULTILINE)
_WORD_PATTERN = re.compile(r"[\w./-]{1,64}")
_NAMED_CALL_PATTERN = re.compile(
    r"tool(?:_name)?:[ \t]*(?P<name>[\w.-]{1,80})\s*"
    r"(?:(?:parameters|arguments|args|input):\s*(?P<arguments>.*))?",
    re.DOTALL | re.IGNORECASE,
)
_FUNCTION_PATTERN = re.compile(r"<function=([^>\n]{1,80})>")
_PARAMETER_PATTERN = re.compile(r"<parameter=([^>\n]{1,80})>")
_TOOL_CALL_PATTERN = re.compile(r"<(tool_call)>")
_CODE_TAG_PATTERN = re.compile(r"<(execute_bash|execute_ipython|execute_browse|command)>")
_CODE_TOOLS = {"execute_ipython": "python", "execute_browse": "browser"}
_REACT_PATTERN = re.compile(
    r"^Action(?: ?\d{1,4})?:[ \t]*(?:(?P<tool>[A-Za-z_][\w .-]{0,79})\[(?P<bracket>[^\n]*)\][ \t]*$"
    r"|(?P<name>[^\n]{1,200})\n{1,3}Action Input(?: ?\d{1,4})?:"
    r"(?P<input>.*?)(?=\n(?:Observation|Thought)\b|\Z))",
    re.MULTILINE | re.DOTALL,
)
_FENCE_PATTERN = re.compile(r"^[ \t]*```([\w+.-]*)[^\n]*$", re.MULTILINE)
_SHELL_LANGUAGES = frozenset({"bash", "sh", "shell", "zsh", "console", "terminal", "mswea_bash_command", ""})
_PYTHON_LANGUAGES = frozenset({"python", "py", "ipython"})


def parse_text_actions(
    text: str, *, prefix: str, commands: frozenset[str] = HARNESS_COMMANDS
) -> tuple[ToolCall, ...]:
    """Return the calls that a turn writes into its text, in the first spelling that occurs.

    Args:
        text: the turn.
        prefix: prefix of the ids of the calls.
        commands: commands of the harness, see `parse_shell_action`.
    """
    for read in _READERS:
        calls = (call for call in read(text, commands) if call is not None)
        if numbered := tuple(_set_id(call, f"{prefix}-{place}") for place, call in enumerate(calls)):
            return numbered
    return ()


def _set_id(call: ToolCall, id: str) -> ToolCall:
    return ToolCall(id=id, name=call.name, arguments=call.arguments, raw_arguments=call.raw_arguments)


def _read_functions(text: str, commands: frozenset[str]) -> Iterator[ToolCall | None]:
    del commands
    for name, body in _iter_tagged(text, _FUNCTION_PATTERN, "</function>"):
        parameters = _iter_tagged(body, _PARAMETER_PATTERN, "</parameter>")
        arguments = {key.strip(): _strip_line_ends(value) for key, value in parameters}
        yield ToolCall(id="", name=name.strip(), arguments=arguments)


def _read_tool_calls(text: str, commands: frozenset[str]) -> Iterator[ToolCall | None]:
    del commands
    for _, body in _iter_tagged(text, _TOOL_CALL_PATTERN, "</tool_call>"):
        yield parse_action_text(body, id="")


def _read_code_tags(text: str, commands: frozenset[str]) -> Iterator[ToolCall | None]:
    for tag, body in _iter_tagged(text, _CODE_TAG_PATTERN):
        code = _strip_line_ends(body)
        if tag in _CODE_TOOLS:
            yield ToolCall(id="", name=_CODE_TOOLS[tag], arguments={"code": code})
        else:
            yield parse_shell_action(code, id="", commands=commands)


def _read_react_lines(text: str, commands: frozenset[str]) -> Iterator[ToolCall | None]:
    del commands
    for match in _REACT_PATTERN.finditer(text):
        value = match["bracket"] if match["tool"] else match["input"].strip()
        arguments, raw = parse_arguments(value, "")
        yield ToolCall(
            id="",
            name=(match["tool"] or match["name"]).strip(),
            arguments={"input": value} if arguments is None else arguments,
            raw_arguments=None if arguments is None else raw,
        )


def _read_last_fence(text: str, commands: frozenset[str]) -> Iterator[ToolCall | None]:
    """Yield the call in the last fence: SWE-agent executes that one, the others are quotations."""
    *_, (language, code) = (("none", ""), *_iter_fences(text))
    if language in _SHELL_LANGUAGES:
        yield parse_shell_action(code, id="", commands=commands)
    elif language in _PYTHON_LANGUAGES:
        yield ToolCall(id="", name="python", arguments={"code": code})


def _iter_tagged(text: str, opening: re.Pattern[str], closing: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name, body) of each element; ``closing`` is the end tag, by default that of the name."""
    position = 0
    while (match := opening.search(text, position)) is not None:
        mark = closing or f"</{match.group(1)}>"
        end = text.find(mark, match.end())
        if end < 0:
            return
        yield match.group(1), text[match.end() : end]
        position = end + len(mark)


def _iter_fences(text: str) -> Iterator[tuple[str, str]]:
    """Yield (language, code) of each fence; a fence with a language inside a fence is part of the code."""
    opening: re.Match[str] | None = None
    for mark in _FENCE_PATTERN.finditer(text):
        if opening is None:
            opening = mark
        elif not mark.group(1):
            yield opening.group(1).lower(), text[opening.end() + 1 : mark.start()]
            opening = None


def _strip_line_ends(text: str) -> str:
    return text.removeprefix("\n").removesuffix("\n")


def parse_action_text(text: str, *, id: str) -> ToolCall | None:
    """Parse the tool call in ``text``; return None if the text is blank.

    A JSON object with a name is a call with arguments, and so are the lines ``tool: name`` and
    ``parameters: {…}``. Any other text is a command: its first word is the name of the tool (or ``act``
    if it begins with no word), the complete text is the argument ``command``.
    """
    action = text.strip()
    if not action:
        return None
    if named := _NAMED_CALL_PATTERN.fullmatch(action):
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
    word = _WORD_PATTERN.match(action)
    return ToolCall(id=id, name=word.group() if word else "act", arguments={"command": action})


def parse_shell_action(text: str, *, id: str, commands: frozenset[str] = HARNESS_COMMANDS) -> ToolCall | None:
    """Return the call of a command line; None if the text is blank.

    The complete line is the argument ``command``.
    """
    line = text.strip()
    if not line:
        return None
    word = _COMMAND_PATTERN.match(line)
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


_READERS: tuple[Callable[[str, frozenset[str]], Iterator[ToolCall | None]], ...] = (
    _read_functions,
    _read_tool_calls,
    _read_code_tags,
    _read_react_lines,
    _read_last_fence,
)
