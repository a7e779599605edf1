"""When two runs are about the same question, so that what is learnt from one is not tried on the other."""

from __future__ import annotations

import re
import unicodedata

_SEPARATOR_PATTERN = re.compile(r"[\W_]+")


def normalize_group_key(text: str) -> str:
    """A question or task id with case, punctuation, spacing and Unicode forms made equal."""
    return _SEPARATOR_PATTERN.sub(" ", unicodedata.normalize("NFKC", text).casefold()).strip()
