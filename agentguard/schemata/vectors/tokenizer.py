"""Tokenizer of vectorisers: the words of a text, and pairs of neighbouring words.

Profiles and schemata are plain English sentences, one per line. Function words are omitted, so that pairs
join content words ("ignored error", not "the error"). Negations ("not", "never", "without") are not omitted.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import log
from typing import Final

from agentguard.errors import InputError

MAX_CHARS: Final = 20_000
"""Maximum number of characters that are read from a text. It bounds the cost of hostile input; no profile is
longer."""

_MAX_WORD_CHARS: Final = 40
_MAX_CACHED_LINE_CHARS: Final = 200
"""Maximum length of a cached line, which bounds the memory of the cache."""

_WORD_PATTERN: Final = re.compile(r"[^\W_]+")
_SMALL_WORDS: Final = """
a an the of to in on at by for from with as is are was were be been being it its this that these those and or
but if then than so which who whom whose has have had do does did will would can could may might shall should
there their they them he she his her him i you your we our us my me
s t d m ll re ve
"""
_SMALL: Final = frozenset(_SMALL_WORDS.split())


def extract_terms(text: str) -> list[str]:
    """Return the words and pairs of neighbouring words, in order, with repetitions.

    Case and Unicode form are ignored; a pair does not cross the end of a line.
    """
    terms: list[str] = []
    for line in text[:MAX_CHARS].splitlines():
        terms += (
            _extract_line_terms_cached(line)
            if len(line) <= _MAX_CACHED_LINE_CHARS
            else _extract_line_terms(line)
        )
    return terms


def weigh_terms(text: str) -> dict[str, float]:
    """Return each term of a text with the weight ``1 + ln(count)``, so that repetitions count less."""
    return {
        term: 1.0 if count == 1 else 1.0 + log(count) for term, count in Counter(extract_terms(text)).items()
    }


def _extract_line_terms(line: str) -> tuple[str, ...]:
    # Truncate again: one character can become eighteen under NFKC.
    normalized = unicodedata.normalize("NFKC", line).casefold()[:MAX_CHARS]
    words = [word[:_MAX_WORD_CHARS] for word in _WORD_PATTERN.findall(normalized) if word not in _SMALL]
    return (*words, *(f"{one} {other}" for one, other in pairwise(words)))


# Profiles repeat the same few hundred sentences, and a query must be fast.
_extract_line_terms_cached = lru_cache(maxsize=2_048)(_extract_line_terms)


def validate_texts(texts: Sequence[str]) -> Sequence[str]:
    """Return ``texts`` unchanged.

    Raises:
        InputError: it is a single string, or one of the items is not a string.
    """
    if isinstance(texts, str):
        raise InputError("expected a list of texts, found one text", hint="pass a list")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"expected a text, got {type(text).__name__}", record=index)
    return texts
