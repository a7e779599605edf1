"""Small helpers over text: lower-casing that keeps offsets, normal forms, sentences."""

from __future__ import annotations

import re

_WORD = re.compile(r"[a-z0-9_]{2,}")
_SENTENCE_END = re.compile(r"[.!?;\n](?=\s|$)")


def to_lower(text: str) -> str:
    """``text`` in lower case, with every offset where it was (one letter grows when lower-cased: U+0130)."""
    low = text.lower()
    return low if len(low) == len(text) else "".join(c.lower()[0] for c in text)


def normalize_text(text: str) -> str:
    """One normal form for texts that differ only in case and white space."""
    return " ".join(text.split()).casefold()


def extract_words(lower_text: str, limit: int = 2_000) -> frozenset[str]:
    """The words of the first ``limit`` code points of a lower-case text."""
    return frozenset(_WORD.findall(lower_text, 0, limit))


def jaccard_similarity(a: frozenset[str], b: frozenset[str]) -> float:
    """Jaccard similarity of two sets, in [0, 1]; two empty sets are equal."""
    if not a or not b:
        return 1.0 if a == b else 0.0
    small, large = sorted((len(a), len(b)))
    if small * 2 < large:  # cannot reach one half: spare the intersection
        return 0.0
    shared = len(a & b)
    return shared / (len(a) + len(b) - shared)


def find_sentence_start(lower_text: str, offset: int, limit: int = 200) -> int:
    """Offset at which the sentence around ``at`` begins, looking back at most ``limit`` code points."""
    begin = max(0, offset - limit)
    ends = [m.end() for m in _SENTENCE_END.finditer(lower_text, begin, offset)]
    return ends[-1] if ends else begin


def find_sentence(lower_text: str, start: int, end: int, limit: int = 160) -> tuple[int, int]:
    """The span of the sentence around a span, reaching at most ``limit`` code points to either side."""
    begin = find_sentence_start(lower_text, start, limit)
    while begin < start and lower_text[begin].isspace():
        begin += 1
    close = _SENTENCE_END.search(lower_text, end, min(len(lower_text), end + limit))
    return begin, close.end() if close else min(len(lower_text), end + limit)
