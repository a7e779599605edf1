"""Segmentation of texts for display that keeps the offsets of the original, so that quotes can be marked.

JSON is formatted by white space between its tokens; it is never parsed and written again. So the page shows
the recorded characters, and offsets are correct at any depth of nesting.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import orjson

SegmentKind = Literal["", "key", "code"]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+|\s+|"', re.DOTALL)
_FENCE = re.compile(r"^```[^\n]*\n.*?(?:^```[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_NAME = re.compile(r'"[A-Za-z_][\w.-]{0,60}"\Z')
_LONE_CARRIAGE_RETURN = re.compile(r"\r(?!\n)")
_MAX_CHARS = 60_000
_MAX_DEPTH = 24
_MAX_LINE_CHARS = 96


@dataclass(frozen=True, slots=True)
class TextSegment:
    """Segment ``text[start:end]``; if both are equal, text inserted there, such as white space."""

    start: int
    end: int
    kind: SegmentKind = ""
    inserted_text: str = ""


def segment_prose(text: str) -> list[TextSegment]:
    """Segment prose; fenced blocks are code."""
    bits, position = [], 0
    for fence in _FENCE.finditer(text) if "```" in text else ():
        if fence.start() > position:
            bits.append(TextSegment(position, fence.start()))
        bits.append(TextSegment(fence.start(), fence.end(), "code"))
        position = fence.end()
    if position < len(text) or not bits:
        bits.append(TextSegment(position, len(text)))
    return bits


def is_json(text: str) -> bool:
    """Return whether a text is one JSON object or array that is short enough to format."""
    head, tail = text[:64].lstrip()[:1], text[-64:].rstrip()[-1:]
    if (head, tail) not in {("{", "}"), ("[", "]")} or len(text) > _MAX_CHARS:
        return False
    # A lone carriage return is JSON whitespace. Formatting would hide it; as prose it is shown.
    if _LONE_CARRIAGE_RETURN.search(text):
        return False
    try:
        orjson.loads(text)
    except ValueError:  # not JSON, or nested too deeply for orjson
        return False
    return True


def segment_json(text: str, *, call: bool = False) -> list[TextSegment]:
    """Segment JSON: what fits on one line stays on one line, the rest is indented.

    Args:
        text: a text for which `is_json` is true.
        call: leave out the outermost braces, as in ``name(key: value)``.
    """
    tokens = [(match.start(), match.end()) for match in _TOKEN.finditer(text) if not match[0].isspace()]
    inner = tokens[1:-1] if call and text[tokens[0][0]] == "{" else tokens
    is_short = sum(end - start for start, end in inner) + len(inner) // 2 <= _MAX_LINE_CHARS
    return list(
        _segment_one_line(text, inner) if is_short else _segment_indented(text, inner, outer=inner is tokens)
    )


def _segment_one_line(text: str, tokens: list[tuple[int, int]]) -> Iterator[TextSegment]:
    for place, (start, end) in enumerate(tokens):
        yield from _classify_token(text, tokens, place)
        if text[start:end] in ",:" and place + 1 < len(tokens):
            yield TextSegment(end, end, inserted_text=" ")


def _segment_indented(text: str, tokens: list[tuple[int, int]], *, outer: bool) -> Iterator[TextSegment]:
    depth = min_depth = 0 if outer else 1
    ends = _find_short_brackets(text, tokens)
    flat = -1  # position of the bracket that closes a part on one line
    if not outer:
        yield TextSegment(tokens[0][0], tokens[0][0], inserted_text=_build_line_break(depth))
    for place, (start, end) in enumerate(tokens):
        sign, inside = text[start:end], place <= flat
        following = text[tokens[place + 1][0]] if place + 1 < len(tokens) else ""
        if sign in "}]" and not inside and text[tokens[place - 1][0]] not in "{[":
            depth = max(min_depth, depth - 1)
            yield TextSegment(start, start, inserted_text=_build_line_break(depth))
        yield from _classify_token(text, tokens, place)
        if not inside and place in ends:
            flat = ends[place]
        elif sign in "{[" and not inside and following not in ("}", "]", ""):
            depth += 1
            yield TextSegment(end, end, inserted_text=_build_line_break(depth))
        elif sign == "," and place + 1 < len(tokens):
            yield TextSegment(end, end, inserted_text=" " if inside else _build_line_break(depth))
        elif sign == ":":
            yield TextSegment(end, end, inserted_text=" ")
    if not outer:
        yield TextSegment(tokens[-1][1], tokens[-1][1], inserted_text="\n")


def _find_short_brackets(text: str, tokens: list[tuple[int, int]]) -> dict[int, int]:
    """Return the positions of opening and closing brackets whose contents fit on one line."""
    ends: dict[int, int] = {}
    open_at: list[tuple[int, int]] = []
    length = 0
    for place, (start, end) in enumerate(tokens):
        if text[start:end] in "{[":
            open_at.append((place, length))
        length += end - start + (text[start:end] in ",:")
        if text[start:end] in "}]" and open_at:
            begin, before = open_at.pop()
            if length - before <= _MAX_LINE_CHARS:
                ends[begin] = place
    return ends


def _build_line_break(depth: int) -> str:
    return "\n" + "  " * min(depth, _MAX_DEPTH)


def _classify_token(text: str, tokens: list[tuple[int, int]], place: int) -> Iterator[TextSegment]:
    start, end = tokens[place]
    key = place + 1 < len(tokens) and text[tokens[place + 1][0]] == ":" and text[start] == '"'
    if key and _NAME.match(text[start:end]):
        yield TextSegment(start + 1, end - 1, "key")  # plain keys are shown without quotation marks
    elif not key and end - start > _MAX_LINE_CHARS and text[start] == '"':
        yield from _segment_long_string(text, start, end)
    else:
        yield TextSegment(start, end, "key" if key else "")


def _segment_long_string(text: str, start: int, end: int) -> Iterator[TextSegment]:
    """Segment a string, with a line break after each escaped ``\\n``."""
    position = start
    for escape in _ESCAPE.finditer(text, start, end):
        if text[escape.start() + 1] == "n":
            yield TextSegment(position, escape.end())
            yield TextSegment(escape.end(), escape.end(), inserted_text="\n")
            position = escape.end()
    yield TextSegment(position, end)
