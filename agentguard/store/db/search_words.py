"""Words of texts, for the search index and for the positions at which a match may begin.

A word is a sequence of letters and digits; each character of a script without spaces is a word. A capital
letter inside a word begins a further word: `ReadTimeout` has the words `readtimeout` and `timeout`.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MAX_WORD_CHARS: Final = 64
"""Maximum length of a word in the index; a longer word is cut, and has no further words inside."""
EVERY_WORD: Final = "everyword"
"""Word of runs whose words are not all in the index; each query matches it."""
_MIN_PREFIX_CHARS: Final = 3
# Scripts without spaces between words: Thai to Myanmar, Khmer, kana, Han.
_NO_SPACES: Final = (
    "\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD: Final = re.compile(rf"[{_NO_SPACES}]|[^\W_{_NO_SPACES}]+")
_IDEOGRAPH: Final = re.compile(rf"[{_NO_SPACES}]")
_INNER_BEGIN: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# `re.IGNORECASE` treats these as equal to i and iota, and `str.casefold` does not.
_CASE_VARIANTS: Final = str.maketrans({"\u0131": "i", "\u0345": "\u03b9"})


class IndexQuery(NamedTuple):
    """Words of each run with a match: complete words, and the beginning of a further one if not empty."""

    words: tuple[str, ...]
    prefix: str


def extract_words(text: str) -> set[str]:
    """Return the words of a text for the index: ASCII letters and digits in lower case."""
    words: set[str] = set()
    for word in set(_WORD.findall(_unify_case_variants(text))):
        words.add(_encode_word(word))
        if len(word) <= MAX_WORD_CHARS and not word.islower():
            words.update(_encode_word(word[found.start() :]) for found in _INNER_BEGIN.finditer(word))
    words.discard("")
    return words


def build_index_query(text: str) -> IndexQuery | None:
    """Return the query for a text; None if the index cannot narrow the search."""
    text = _unify_case_variants(text.strip())
    words = _WORD.findall(text)
    if not words:
        return None
    prefix = _encode_word(words.pop()) if text[-1].isalnum() else ""
    complete = tuple(sorted({encoded for word in words if (encoded := _encode_word(word))}))
    if len(prefix) < _MIN_PREFIX_CHARS:  # many words begin with so short a prefix
        prefix = ""
    return IndexQuery(complete, prefix) if complete or prefix else None


def begins_with_word(text: str) -> bool:
    """Return whether a text that is not empty begins with a letter or digit."""
    return _unify_case_variants(text[0]).isalnum()


def is_word_begin(text: str, place: int) -> bool:
    """Return whether a match of a letter or digit at this place begins a word."""
    if place == 0:
        return True
    text = _unify_case_variants(text[max(0, place - MAX_WORD_CHARS - 1) : place + MAX_WORD_CHARS + 1])
    place = min(place, MAX_WORD_CHARS + 1)
    if not text[place - 1].isalnum() or any(map(_IDEOGRAPH.match, text[place - 1 : place + 1])):
        return True
    if _INNER_BEGIN.match(text, place) is None:
        return False
    return any(
        found.start() < place < found.end() and len(found.group()) <= MAX_WORD_CHARS
        for found in _WORD.finditer(text)
    )


def _unify_case_variants(text: str) -> str:
    return text if text.isascii() else text.translate(_CASE_VARIANTS)


def _encode_word(word: str) -> str:
    """Return a word without upper case, in ASCII: databases split and fold other characters differently."""
    word = word[:MAX_WORD_CHARS]
    if word.isascii():
        return word.lower()
    folded = filter(str.isalnum, word.casefold())
    return "".join(char if char.isascii() else char.encode().hex() for char in folded)
