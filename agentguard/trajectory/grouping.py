"""Grouping of runs by question, so that training and test data never share a question."""

from __future__ import annotations

import re
import unicodedata

_SEPARATOR_PATTERN = re.compile(r"[\W_]+")


def normalize_group_key(text: str) -> str:
    """Return a question or task id without differences of case, punctuation, spacing and Unicode form."""
    return _SEPARATOR_PATTERN.sub(" ", unicodedata.normalize("NFKC", text).casefold()).strip()
