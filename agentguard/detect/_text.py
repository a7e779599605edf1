"""Text helpers: lower case with stable offsets, normal forms, words and sentences."""

from __future__ import annotations

import re

_WORD = re.compile(r"[a-z0-9_]{2,}")
_SENTENCE_END = re.compile(r"[.!?;\n](?=\s|$)")


def to_lower(text: str) -> str:
    """Return ``text`` in lower case with all offsets unchanged; U+0130, which would grow, is replaced."""
    low = text.lower()
    return low if len(low) == len(text) else "".join(c.lower()[0] for c in text)


def normalize_text(text: str) -> str:
    """Return a text in case-folded form with single spaces, for comparisons."""
    return " ".join(text.split()).casefold()


def extract_words(lower_text: str, limit: int = 2_000) -> frozenset[str]:
    """Return the words of two characters or more in the first ``limit`` code points of a lower-case text."""
    return frozenset(_WORD.findall(lower_text, 0, limit))


def jaccard_similarity(a: frozenset[str], b: frozenset[str]) -> float:
    """Return the Jaccard similarity of two sets, in [0, 1]; 0 if their sizes rule out at least 0.5.

    Two empty sets have the similarity 1.
    """
    if not a or not b:
        return 1.0 if a == b else 0.0
    small, large = sorted((len(a), len(b)))
    if small * 2 < large:  # no detector accepts a threshold below 0.5
        return 0.0
    shared = len(a & b)
    return shared / (len(a) + len(b) - shared)


def find_sentence_start(lower_text: str, offset: int, limit: int = 200) -> int:
    """Return the start of the sentence around ``offset``, at most ``limit`` code points before it."""
    begin = max(0, offset - limit)
    ends = [m.end() for m in _SENTENCE_END.finditer(lower_text, begin, offset)]
    return ends[-1] if ends else begin


def find_sentence(lower_text: str, start: int, end: int, limit: int = 160) -> tuple[int, int]:
    """Return the span of the sentence around a span, extended by at most ``limit`` code points on either
    side.
    """
    begin = find_sentence_start(lower_text, start, limit)
    while begin < start and lower_text[begin].isspace():
        begin += 1
    close = _SENTENCE_END.search(lower_text, end, min(len(lower_text), end + limit))
    return begin, close.end() if close else min(len(lower_text), end + limit)
