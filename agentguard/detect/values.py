"""Values that can be traced through a run: numbers, identifiers, e-mail addresses, dates.

The index answers one question, "where did this value first appear", for the texts an agent may take values
from: the task, the prompts, the tools' descriptions, what users said and what the environment returned.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

_INSIDE = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_@.+-")
_SEPARATE = bytes(byte if byte in _INSIDE else 32 for byte in range(256))
_NUMBER = re.compile(r"[-+]?\$?\d[\d,]*(?:\.\d+)?\Z")
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?![\d-])")
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_RELATIVE = re.compile(
    r"\b(?:today|tonight|tomorrow|yesterday|(?:mon|tues|wednes|thurs|fri|satur|sun)day|weekend"
    r"|(?:next|last|this|in \w+|\w+) (?:days?|weeks?|months?|years?))\b"
)
_MAX_TOKENS = 10_000


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value first appeared: step and field; step -1 is before the run."""

    step: int
    field: str


class ValueIndex:
    """Value to the place where it first appeared, in bounded memory.

    Args:
        capacity: values kept; when it is full the oldest go, and `complete` turns false.
        window: texts kept for the search that follows a miss (a value may stand inside another token).
    """

    def __init__(self, *, capacity: int = 200_000, window: int = 32) -> None:
        self.capacity = capacity
        self.complete = True
        self._first: dict[str, Origin] = {}
        self._basis: list[str] = []
        self._recent: deque[str] = deque(maxlen=window)
        self._said: deque[str] = deque(maxlen=window)

    def add(self, low: str, origin: Origin, *, said: bool = False) -> None:
        """Index a lower-case text; ``said`` marks what a user said, which is kept longer for the search."""
        first = self._first
        # Splitting bytes by a table costs a tenth of a pattern; words without a digit come along for free.
        tokens = low.encode("ascii", "replace").translate(_SEPARATE).decode("ascii").split()
        for token in tokens if len(tokens) <= _MAX_TOKENS else tokens[:_MAX_TOKENS]:
            if token not in first:
                first[token] = origin
                if token[-1] in ".+-" or token[0] in ".+-":
                    first.setdefault(token.strip(".+-"), origin)
                if len(token) > 10 and token[4] == "-" and token[7] == "-":
                    first.setdefault(token[:10], origin)
        if len(first) > self.capacity:
            self.complete = False
            for token in list(first)[: len(first) - self.capacity * 3 // 4]:
                del first[token]
        clipped = low[:20_000]
        if origin.step < 0:
            self._basis.append(clipped)
        else:
            (self._said if said else self._recent).append(clipped)

    def origin(self, value: str) -> Origin | None:
        """Where ``value`` first appeared as a token, in one of its usual spellings; None if it did not."""
        found = self._first.get(value.lower().lstrip("#$"))
        if found is not None:
            return found
        for form in spellings(value):
            found = self._first.get(form)
            if found is not None:
                return found
        return None

    def knows(self, value: str) -> bool:
        """Whether ``value`` appeared, also inside a longer token or, for a date, in another spelling."""
        if self.origin(value) is not None:
            return True
        low = value.strip().lower()
        forms = spellings(low)
        if any(form in text for text in self._texts() for form in forms):
            return True
        date = _DATE.match(low)
        return date is not None and self._knows_date(date)

    def _knows_date(self, date: re.Match[str]) -> bool:
        pattern = _spoken(int(date[2]), int(date[3]))
        return any(pattern.search(text) or _RELATIVE.search(text) for text in (*self._basis[:1], *self._said))

    def _texts(self) -> Iterable[str]:
        yield from self._basis
        yield from self._said
        yield from self._recent


def number(value: object) -> float | None:
    """The number that a JSON value or a text is, or None. Thousands commas and a dollar sign are dropped."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return None
    if isinstance(value, str) and len(value) < 40 and _NUMBER.match(value.strip()):
        return float(value.strip().replace("$", "").replace(",", ""))
    return None


@lru_cache(maxsize=4_096)
def spellings(value: str) -> tuple[str, ...]:
    """The spellings under which a value may stand in a text, lower case, the usual one first."""
    low = value.strip().lower()
    amount = number(low)
    if amount is None or abs(amount) >= 1e15:
        return (low,)
    size = abs(amount)
    forms = [low, f"{size:.2f}", f"{size:,.2f}", f"{size:.1f}"]
    if size == int(size):
        forms += [str(int(size)), f"{int(size):,}"]
    else:
        forms.append(f"{size:g}")
    return tuple(dict.fromkeys(forms))


@lru_cache(maxsize=512)
def _spoken(month: int, day: int) -> re.Pattern[str]:
    """How people write a day of the year: "May 20th", "20 May", "5/20", "20.05."."""
    name = f"{_MONTHS[month - 1]}[a-z]*" if 1 <= month <= 12 else "(?!)"
    return re.compile(
        rf"\b{name}\.? 0?{day}(?!\d)|\b0?{day}(?:st|nd|rd|th)?(?: of)? {name}"
        rf"|\b0?{month}/0?{day}(?!\d)|\b0?{day}[./]0?{month}(?!\d)"
    )
