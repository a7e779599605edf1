"""Text from a run, made safe and short enough for a terminal."""

from __future__ import annotations

import unicodedata


def clean(text: str) -> str:
    """Replace what a terminal would obey instead of showing: control, format and surrogate characters."""
    return "".join(_visible(c) for c in text)


def one_line(text: str, limit: int) -> str:
    """Return ``text`` cleaned, on one line, cut to ``limit`` characters with an ellipsis."""
    line = " ".join(clean(text[: 4 * limit]).split())
    return line if len(line) <= limit and len(text) <= 4 * limit else f"{line[: limit - 1].rstrip()}…"


def excerpt(text: str, start: int, end: int, *, limit: int) -> tuple[str, str, str]:
    """Return (before, quote, after) on one line, with as much context as ``limit`` characters leave."""
    quote = one_line(text[start:end], limit)
    room = max(0, (limit - len(quote)) // 2)
    before, after = text[max(0, start - room) : start], text[end : end + room]
    lead = "…" if start > room else ""
    tail = "…" if end + room < len(text) else ""
    return lead + _flat(before), quote, _flat(after) + tail


def _flat(text: str) -> str:
    """Whitespace collapsed, but kept at the ends, where it separates the quote from its context."""
    words = " ".join(clean(text).split())
    left = " " if words and text[:1].isspace() else ""
    right = " " if words and text[-1:].isspace() else ""
    return f"{left}{words}{right}"


def _visible(char: str) -> str:
    if char in "\n\t" or char.isprintable():
        return char
    return " " if char.isspace() else "�" if unicodedata.category(char) in ("Cc", "Cs", "Co", "Cn") else ""
