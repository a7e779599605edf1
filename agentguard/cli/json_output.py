"""JSON on standard output."""

from __future__ import annotations

import sys
from typing import Any

import orjson


def print_json(value: Any, *, is_indented: bool = False) -> None:
    """Print a value as UTF-8 on one line, or indented; values of other types become their text."""
    option = orjson.OPT_APPEND_NEWLINE | (orjson.OPT_INDENT_2 if is_indented else 0)
    sys.stdout.buffer.write(orjson.dumps(value, option=option, default=str))
    sys.stdout.buffer.flush()
