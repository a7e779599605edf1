"""Small grammar of alternatives: ``[a|b [c|d]]`` means one of its parts, drawn at random.

Alternatives nest; an empty part is allowed. Braces are left unchanged, for `str.format`.
"""

from __future__ import annotations

import random
from functools import cache

from agentguard.errors import ConfigError

Node = str | tuple[tuple["Node", ...], ...]


@cache
def parse(template: str) -> tuple[Node, ...]:
    """Return a template as a sequence of texts and choices. Raises ConfigError for unbalanced brackets."""
    parts, end = _sequence(template, 0, inside=False)
    if end != len(template):
        raise ConfigError(f"a bracket is closed at {end} that was never opened")
    return parts


def draw(template: str, rng: random.Random) -> str:
    """Return a random text of the template."""
    return _draw(parse(template), rng)


def count_texts(template: str) -> int:
    """Return the number of texts of the template, with duplicates."""
    return _size(parse(template))


def _draw(parts: tuple[Node, ...], rng: random.Random) -> str:
    return "".join(part if isinstance(part, str) else _draw(rng.choice(part), rng) for part in parts)


def _size(parts: tuple[Node, ...]) -> int:
    total = 1
    for part in parts:
        if not isinstance(part, str):
            total *= sum(_size(option) for option in part)
    return total


def _sequence(text: str, at: int, *, inside: bool) -> tuple[tuple[Node, ...], int]:
    parts: list[Node] = []
    begin = at
    while at < len(text) and not (inside and text[at] in "|]") and text[at] != "]":
        if text[at] == "[":
            parts.append(text[begin:at])
            choice, at = _choice(text, at + 1)
            parts.append(choice)
            begin = at
        else:
            at += 1
    parts.append(text[begin:at])
    return tuple(part for part in parts if part != ""), at


def _choice(text: str, at: int) -> tuple[tuple[tuple[Node, ...], ...], int]:
    options = []
    while True:
        option, at = _sequence(text, at, inside=True)
        options.append(option)
        if at >= len(text):
            raise ConfigError("a bracket is never closed")
        if text[at] == "]":
            return tuple(options), at + 1
        at += 1
