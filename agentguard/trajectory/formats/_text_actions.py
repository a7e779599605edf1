"""Actions that an agent writes into its text: tags, ReAct lines and fenced code.

The spellings are those of OpenHands and SWE-smith (``<function=…>``), Hermes (``<tool_call>``), CodeAct
(``<execute_bash>``), ReAct (``Action: search[…]``), SWE-agent and mini-swe-agent (fenced code). All searches
take time linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from agentguard.trajectory.formats._action_text import parse_action_text
from agentguard.trajectory.formats._content_parts import parse_arguments
from agentguard.trajectory.formats._shell_action import HARNESS_COMMANDS, parse_shell_action
from agentguard.trajectory.model import ToolCall

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


_READERS: tuple[Callable[[str, frozenset[str]], Iterator[ToolCall | None]], ...] = (
    _read_functions,
    _read_tool_calls,
    _read_code_tags,
    _read_react_lines,
    _read_last_fence,
)
