"""Console of the commands, and sanitization of text from a run for it."""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from typing import IO, Any, cast

from rich.console import Console

_TRAILING_SPACES = re.compile(r" +(?=\n)")
_PIPE_WIDTH, _PIPE_HEIGHT = 10_000, 25
"""Columns of output that is not a terminal: no table is cut and no sentence is wrapped."""


def build_console(**options: Any) -> Console:
    """Return a console on standard output; a pipe or a file gets whole lines unless ``COLUMNS`` is set."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return _PipedConsole(**options)
    # Rich uses the width of a dumb terminal unless the height is given, too.
    return _PipedConsole(
        width=_PIPE_WIDTH, height=_PIPE_HEIGHT, file=cast(IO[str], _TrimmedOutput()), **options
    )


class _PipedConsole(Console):
    """Console that raises BrokenPipeError if the reader of the output has closed it; Rich exits with 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class _TrimmedOutput:
    """Standard output without the spaces that Rich adds up to the width of the console."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        sys.stdout.write(_TRAILING_SPACES.sub("", text))
        return len(text)

    def flush(self) -> None:
        sys.stdout.flush()

    def isatty(self) -> bool:
        return False


def sanitize(text: str) -> str:
    """Replace characters that a terminal would interpret: control, format and surrogate characters."""
    return "".join(_replace_invisible(c) for c in text)


def to_one_line(text: str, limit: int) -> str:
    """Return ``text`` cleaned, on one line, cut to ``limit`` characters with an ellipsis."""
    line = " ".join(sanitize(text[: 4 * limit]).split())
    return line if len(line) <= limit and len(text) <= 4 * limit else f"{line[: limit - 1].rstrip()}…"


def extract_excerpt(text: str, start: int, end: int, *, limit: int) -> tuple[str, str, str]:
    """Return (before, quote, after) on one line, with as much context as ``limit`` characters leave."""
    quote = to_one_line(text[start:end], limit)
    room = max(0, (limit - len(quote)) // 2)
    before, after = text[max(0, start - room) : start], text[end : end + room]
    lead = "…" if start > room else ""
    tail = "…" if end + room < len(text) else ""
    return lead + _collapse_whitespace(before), quote, _collapse_whitespace(after) + tail


def _collapse_whitespace(text: str) -> str:
    """Collapse whitespace; keep one space at an end, where it separates the quote from its context."""
    words = " ".join(sanitize(text).split())
    prefix = " " if words and text[:1].isspace() else ""
    suffix = " " if words and text[-1:].isspace() else ""
    return f"{prefix}{words}{suffix}"


def _replace_invisible(char: str) -> str:
    if char in "\n\t" or char.isprintable():
        return char
    return " " if char.isspace() else "�" if unicodedata.category(char) in ("Cc", "Cs", "Co", "Cn") else ""
