"""A text cut into bits that keep their places in it, so that quotes can be marked however it is laid out.

JSON is laid out by adding white space between its tokens, never by parsing and writing it anew: what is
shown is what was recorded, to the character, and offsets stay true at any depth of nesting.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import orjson

Kind = Literal["", "key", "code"]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+|\s+|"', re.DOTALL)
_FENCE = re.compile(r"^```[^\n]*\n.*?(?:^```[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_NAME = re.compile(r'"[A-Za-z_][\w.-]{0,60}"\Z')
_LONGEST = 60_000
_DEEPEST = 24
_ONE_LINE = 96


@dataclass(frozen=True, slots=True)
class Bit:
    """``text[start:end]``, or where both are equal something added between: white space, a comma."""

    start: int
    end: int
    kind: Kind = ""
    added: str = ""


def prose(text: str) -> list[Bit]:
    """A text as people write it: fenced blocks are code."""
    bits, at = [], 0
    for fence in _FENCE.finditer(text) if "```" in text else ():
        if fence.start() > at:
            bits.append(Bit(at, fence.start()))
        bits.append(Bit(fence.start(), fence.end(), "code"))
        at = fence.end()
    if at < len(text) or not bits:
        bits.append(Bit(at, len(text)))
    return bits


def is_json(text: str) -> bool:
    """Whether a text is one JSON object or list that can be laid out."""
    head, tail = text[:64].lstrip()[:1], text[-64:].rstrip()[-1:]
    if (head, tail) not in {("{", "}"), ("[", "]")} or len(text) > _LONGEST:
        return False
    try:
        orjson.loads(text)
    except ValueError:  # not JSON, or nested so deeply that it is none to orjson
        return False
    return True


def json(text: str, *, call: bool = False) -> list[Bit]:
    """JSON laid out: what fits into a line stands in one, all else is indented.

    Args:
        text: a text that `is_json`.
        call: leave the outermost braces out, as in ``name(key: value)``.
    """
    tokens = [(found.start(), found.end()) for found in _TOKEN.finditer(text) if not found[0].isspace()]
    inner = tokens[1:-1] if call and text[tokens[0][0]] == "{" else tokens
    short = sum(end - start for start, end in inner) + len(inner) // 2 <= _ONE_LINE
    return list(_one_line(text, inner) if short else _indented(text, inner, outer=inner is tokens))


def _one_line(text: str, tokens: list[tuple[int, int]]) -> Iterator[Bit]:
    for place, (start, end) in enumerate(tokens):
        yield from _token(text, tokens, place)
        if text[start:end] in ",:" and place + 1 < len(tokens):
            yield Bit(end, end, added=" ")


def _indented(text: str, tokens: list[tuple[int, int]], *, outer: bool) -> Iterator[Bit]:
    depth = least = 0 if outer else 1
    ends = _short_ends(text, tokens)
    flat = -1  # the place of the bracket that ends what stands in one line
    if not outer:
        yield Bit(tokens[0][0], tokens[0][0], added=_break(depth))
    for place, (start, end) in enumerate(tokens):
        sign, inside = text[start:end], place <= flat
        following = text[tokens[place + 1][0]] if place + 1 < len(tokens) else ""
        if sign in "}]" and not inside and text[tokens[place - 1][0]] not in "{[":
            depth = max(least, depth - 1)
            yield Bit(start, start, added=_break(depth))
        yield from _token(text, tokens, place)
        if not inside and place in ends:
            flat = ends[place]
        elif sign in "{[" and not inside and following not in ("}", "]", ""):
            depth += 1
            yield Bit(end, end, added=_break(depth))
        elif sign == "," and place + 1 < len(tokens):
            yield Bit(end, end, added=" " if inside else _break(depth))
        elif sign == ":":
            yield Bit(end, end, added=" ")
    if not outer:
        yield Bit(tokens[-1][1], tokens[-1][1], added="\n")


def _short_ends(text: str, tokens: list[tuple[int, int]]) -> dict[int, int]:
    """Places of opening brackets whose contents fit into a line, with those of the closing ones."""
    ends: dict[int, int] = {}
    open_at: list[tuple[int, int]] = []
    length = 0
    for place, (start, end) in enumerate(tokens):
        if text[start:end] in "{[":
            open_at.append((place, length))
        length += end - start + (text[start:end] in ",:")
        if text[start:end] in "}]" and open_at:
            began, before = open_at.pop()
            if length - before <= _ONE_LINE:
                ends[began] = place
    return ends


def _break(depth: int) -> str:
    return "\n" + "  " * min(depth, _DEEPEST)


def _token(text: str, tokens: list[tuple[int, int]], place: int) -> Iterator[Bit]:
    start, end = tokens[place]
    key = place + 1 < len(tokens) and text[tokens[place + 1][0]] == ":" and text[start] == '"'
    if key and _NAME.match(text[start:end]):
        yield Bit(start + 1, end - 1, "key")  # a plain key is read better without its quotation marks
    elif not key and end - start > _ONE_LINE and text[start] == '"':
        yield from _long_string(text, start, end)
    else:
        yield Bit(start, end, "key" if key else "")


def _long_string(text: str, start: int, end: int) -> Iterator[Bit]:
    """A string with a line break after each that is written in it."""
    at = start
    for escape in _ESCAPE.finditer(text, start, end):
        if text[escape.start() + 1] == "n":
            yield Bit(at, escape.end())
            yield Bit(escape.end(), escape.end(), added="\n")
            at = escape.end()
    yield Bit(at, end)
