"""Number of equal calls that the user has asked for, such as "book two tickets"."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from agentguard.detect.tool_names import normalize_tool_name
from agentguard.trajectory.model import ToolCall

_NUMBERS: Final = {
    "two": 2, "both": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "eleven": 11, "twelve": 12,
}  # fmt: skip
_QUANTITY_PATTERN = re.compile(rf"\b({'|'.join(_NUMBERS)}|\d{{1,2}})\s+([a-z'-]+(?:\s+[a-z'-]+){{0,2}})")
_TIMES_PATTERN = re.compile(rf"\b(?:twice|({'|'.join(_NUMBERS)}|\d{{1,2}})\s+times)\b")
_LIMIT_PATTERN = re.compile(
    r"\b(?:not|never|without|no more than|at most|up to|than|only if)\b|n['\u2019]t\b"
)
_WORD_PATTERN = re.compile(r"[a-z]{3,}")
_MAX_TEXT_CHARS = 8_000


def requests_equal_calls(texts: Iterable[str], call: ToolCall, count: int) -> bool:
    """Return whether a text of the user asks for ``count`` equal calls.

    The count precedes a plural whose singular is a word of the call ("two tickets", ``book_ticket``), or it
    is a number of times in a sentence with a word of the tool's name ("charge the card twice", ``charge``).
    A number that is an argument of the call counts nothing ("seat 2"). Nor does a count behind a negation or
    a limit.
    """
    if any(value == count for value in (call.arguments or {}).values()):
        return False
    name_words = set(_WORD_PATTERN.findall(normalize_tool_name(call.name)))
    words = name_words | _collect_words(call.arguments or {})
    return any(
        _states_quantity(sentence, words, count) or _states_times(sentence, name_words, count)
        for text in texts
        for sentence in re.split(r"[.!?;\n]+", text[:_MAX_TEXT_CHARS].lower())
    )


def _states_quantity(sentence: str, words: set[str], count: int) -> bool:
    return any(
        _parse(match[1]) == count and _has_plural(match[2], words) and not _is_limited(sentence, match)
        for match in _QUANTITY_PATTERN.finditer(sentence)
    )


def _states_times(sentence: str, name_words: set[str], count: int) -> bool:
    return any(
        (_parse(match[1]) if match[1] else 2) == count
        and not _is_limited(sentence, match)
        and not name_words.isdisjoint(_WORD_PATTERN.findall(sentence))
        for match in _TIMES_PATTERN.finditer(sentence)
    )


def _has_plural(phrase: str, words: set[str]) -> bool:
    return any(word[-1] == "s" and word[:-1] in words for word in phrase.split())


def _is_limited(sentence: str, match: re.Match[str]) -> bool:
    return _LIMIT_PATTERN.search(sentence, 0, match.start()) is not None


def _parse(number: str) -> int:
    return _NUMBERS.get(number) or int(number)


def _collect_words(arguments: Any) -> set[str]:
    texts = [str(part) for item in arguments.items() for part in item if isinstance(part, str)]
    return {word for text in texts for word in _WORD_PATTERN.findall(text[:200].lower())}
