"""Values in the text of a run (amounts, dates, codes, addresses, names) and slips of them.

The functions are pure. `agentguard.evals.inject.edits.run_index` finds the source of a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum
from functools import lru_cache

_LIMIT = 40_000
_FAR_DAYS, _FAR_FACTOR = 60, 5
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}"
_FOUND = re.compile(
    r"(?P<email>[\w.+-]{1,64}@[\w-]{1,64}\.[\w.]{1,32}\w)"
    r"|(?P<skip>https?://\S+|\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d[\d:.Z]*|\b\d{1,2}:\d\d(?::\d\d)?"
    rf"|\b{_MONTH}\.? \d{{1,2}}(?:st|nd|rd|th)?\b|\b\d{{1,2}}(?:st|nd|rd|th)?(?: of)? {_MONTH})"
    r"|(?<![\w-])(?P<date>\d{4}-\d\d-\d\d)(?![\w-])"
    r"|(?<![\w-])(?P<code>(?=[\w-]{0,40}\d)(?=[\w-]{0,40}[A-Za-z])\w[\w-]{2,38}\w)(?![\w-])"
    r"|(?<![\w.,-])\$?(?P<amount>\d[\d,]*(?:\.\d+)?)(?![\w-]|[.,]\d)"
)
_NO_CODE = re.compile(r"\d+(?:st|nd|rd|th|am|pm|km|kg|ms|px)|\d+-[a-z]+(?:-[a-z]+)*", re.IGNORECASE)
_YEAR = re.compile(r"(?:19|20)\d\d")
_NAME = re.compile(r"[^\W\d_][\w' -]{1,28}\w")


class ValueKind(StrEnum):
    """Kind of a value, recognised by its form."""

    AMOUNT = "amount"
    DATE = "date"
    CODE = "code"
    EMAIL = "email"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Value:
    """A value in its plain form: an amount without currency sign and thousands separators."""

    text: str
    kind: ValueKind


@lru_cache(maxsize=2_048)
def extract_values(text: str) -> tuple[Value, ...]:
    """Return the distinct values of a text, in order; `find_names` finds names."""
    values: dict[Value, None] = {}
    for match in _FOUND.finditer(text, 0, _LIMIT):
        value = _build_value(match.lastgroup or "", match[match.lastgroup or 0])
        if value is not None:
            values[value] = None
    return tuple(values)


def find_names(text: str, names: Iterable[Value]) -> tuple[Value, ...]:
    """Return the names that occur in the text as whole words."""
    low = text[:_LIMIT].lower()
    return tuple(name for name in names if name.text.lower() in low and contains_value(text, name))


def classify_value(text: str) -> Value | None:
    """Return the value of a whole text (an argument), or None if the text is prose or not a value."""
    stripped = text.strip()
    match = _FOUND.fullmatch(stripped) if len(stripped) <= 60 else None
    if match:
        return _build_value(match.lastgroup or "", match[match.lastgroup or 0])
    if _NAME.fullmatch(stripped) and stripped.count(" ") < 4:
        return Value(stripped, ValueKind.NAME)
    return None


def contains_value(text: str, value: Value) -> bool:
    """Return whether a text contains a value as a whole word."""
    return _build_pattern(value).search(text) is not None


def replace_value(text: str, old: Value, new: str) -> str:
    """Return ``text`` with every whole occurrence of ``old`` replaced, in the spelling of the occurrence."""

    def spelled(match: re.Match[str]) -> str:
        if old.kind is ValueKind.AMOUNT and "," in match[0]:
            return _format_with_commas(new)
        if old.kind is ValueKind.NAME and match[0][:1].isupper() and new[:1].islower():
            return new[:1].upper() + new[1:]
        return new

    return _build_pattern(old).sub(spelled, text)


def is_confusable(a: Value, b: Value) -> bool:
    """Return whether two values can be confused: one kind, and the same form (codes) or close (others)."""
    if a.kind is not b.kind or a.text.lower() == b.text.lower():
        return False
    if a.kind is ValueKind.CODE:
        return _describe_form(a.text) == _describe_form(b.text)
    if a.kind is ValueKind.DATE:
        return _count_days_apart(a.text, b.text) <= _FAR_DAYS
    if a.kind is ValueKind.AMOUNT:
        small, large = sorted((float(a.text), float(b.text)))
        return large <= small * _FAR_FACTOR
    return True


def generate_variants(value: Value) -> tuple[str, ...]:
    """Return slips of a value: neighbouring digits swapped, a digit or letter changed, a date some days off.

    Names and addresses have no slips. The order is always the same.
    """
    if value.kind is ValueKind.DATE:
        return _generate_other_days(value.text)
    if value.kind in (ValueKind.NAME, ValueKind.EMAIL):
        return ()
    return tuple(dict.fromkeys(slip for slip in _generate_slips(value.text) if slip != value.text))


def parse_number_like(like: float, text: str) -> int | float:
    """Return the number in a text, as an integer if ``like`` is one and the text allows it."""
    return int(text) if isinstance(like, int) and text.isdigit() else float(text)


def _build_value(group: str, text: str) -> Value | None:
    if group == "code":
        return None if _NO_CODE.fullmatch(text) else Value(text, ValueKind.CODE)
    if group == "amount":
        number_text = text.replace(",", "")
        short = sum(c.isdigit() for c in number_text) < 2
        return (
            None
            if short or _YEAR.fullmatch(number_text) or len(number_text) > 15
            else Value(number_text, ValueKind.AMOUNT)
        )
    if group in ("email", "date"):
        return Value(text, ValueKind(group))
    return None


@lru_cache(maxsize=4_096)
def _build_pattern(value: Value) -> re.Pattern[str]:
    if value.kind is ValueKind.AMOUNT:
        forms = {value.text, _format_with_commas(value.text)}
        body = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
        return re.compile(rf"(?<![\w.,-])(?:{body})(?![\w-]|[.,]\d)")
    flags = re.IGNORECASE if value.kind is ValueKind.NAME else 0
    return re.compile(rf"(?<![\w-]){re.escape(value.text)}(?![\w-])", flags)


def _format_with_commas(plain: str) -> str:
    integer_part, dot, fraction = plain.partition(".")
    return f"{int(integer_part):,}{dot}{fraction}" if integer_part.isdigit() else plain


def _describe_form(code: str) -> str:
    """Return the form of a code: digits and capitals by class, small letters without their number."""
    classes = re.sub(r"[A-Z]", "A", re.sub(r"\d", "9", code))
    return re.sub(r"[a-z]+", "a", classes)


def _generate_slips(text: str) -> Iterable[str]:
    digits = [i for i, c in enumerate(text) if c.isdecimal()]
    for i in digits:
        if i + 1 in digits and text[i] != text[i + 1] and not (i == digits[0] and text[i + 1] == "0"):
            yield text[:i] + text[i + 1] + text[i] + text[i + 2 :]
    for i in digits:
        for offset in (1, 2, 8, 9):
            changed = str((int(text[i]) + offset) % 10)
            if not (changed == "0" and i == digits[0]):
                yield text[:i] + changed + text[i + 1 :]
    for i, c in enumerate(text):
        if c.isascii() and c.isupper():
            yield text[:i] + chr((ord(c) - 65 + 5) % 26 + 65) + text[i + 1 :]


def _count_days_apart(a: str, b: str) -> int:
    try:
        return abs((date.fromisoformat(a) - date.fromisoformat(b)).days)
    except ValueError:
        return _FAR_DAYS + 1


def _generate_other_days(text: str) -> tuple[str, ...]:
    try:
        day = date.fromisoformat(text)
        return tuple((day + timedelta(days=offset_days)).isoformat() for offset_days in (1, -1, 2, -2, 7, 10))
    except (ValueError, OverflowError):
        return ()
