"""Results of tools that only read, and what shows that one of them is broken."""

from __future__ import annotations

import re

import orjson

from agentguard.detect.text import lowered
from agentguard.detect.trouble import Kind, trouble

_FOR_GOOD = frozenset({Kind.REJECTED, Kind.NO_ACTION})
"""Answers that say no: the same question gets the same answer."""

_CUT_OFF = re.compile(r"[\[(<]\s*(?:output |response |result )?truncated\s*[\])>]\s*\Z", re.IGNORECASE)


def broken(text: str, *, failed: bool | None = None) -> str:
    """What is wrong with a result, in a word or two; empty if nothing is.

    Args:
        text: what the tool returned, or said when it failed.
        failed: whether it is known to have failed, or not to have.
    """
    bare = text.strip()
    found = trouble(lowered(text), flag=failed)
    if found is not None:
        return "" if found.kind in _FOR_GOOD else "an error"
    if bare in ("", "[]", "{}", "null", "None", '""'):
        return "empty"
    if _CUT_OFF.search(bare[-40:]) or _open_json(bare):
        return "cut off"
    return ""


def _open_json(text: str) -> bool:
    """Whether a text begins as JSON and ends before its end."""
    close = {"{": "}", "[": "]"}.get(text[0])
    if close is None or text.endswith(close):
        return False
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return error.pos >= len(text)
    return False
