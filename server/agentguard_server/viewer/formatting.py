"""Formatting of numbers, durations, dates, probabilities and amounts for people."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from agentguard.errors import AgentGuardError
from agentguard.taxonomy.catalog import TaxonomyCatalog


def format_percent(share: float | None) -> str:
    """Format a probability: ``93 %``; ``–`` for None. Only 0 and 1 give 0 % and 100 %.

    The space is non-breaking.
    """
    if share is None:
        return "–"
    if 0 < share < 0.01:
        return "<\u00a01\u00a0%"
    if 0.99 < share < 1:
        return ">\u00a099\u00a0%"
    return f"{share * 100:.0f}\u00a0%"


def format_duration(seconds: float | None) -> str:
    """Format a duration: ``340 ms``, ``2.4 s``, ``3 min 5 s``, ``2 h 4 min``."""
    if seconds is None:
        return "–"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, remaining_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {remaining_s} s" if remaining_s else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def format_time(seconds: float | None, form: str = "%Y-%m-%d %H:%M") -> str:
    """Format a timestamp (epoch seconds) in UTC; empty for None and if it is out of range."""
    try:
        return time.strftime(form, time.gmtime(seconds)) if seconds is not None else ""
    except (ValueError, OverflowError, OSError):
        return ""


def format_day(seconds: float) -> str:
    """Format the date of a timestamp (epoch seconds) in UTC; empty if it is out of range."""
    return format_time(seconds, "%Y-%m-%d")


def format_dollars(amount: float | None) -> str:
    """Format an amount of US dollars: ``$1.20``, ``$0.0031``."""
    if amount is None:
        return "–"
    if amount == 0 or amount >= 0.1:
        return f"${amount:,.2f}"
    return f"${amount:.2g}" if amount >= 1e-4 else "< $0.0001"


def format_count(number: int | None) -> str:
    """Format an integer: ``1,234``; ``–`` for None."""
    return "–" if number is None else f"{number:,}"


def format_number(amount: float) -> str:
    """Format a number with at most two decimals: ``5``, ``1,234.50``."""
    return f"{amount:,.0f}" if amount == int(amount) else f"{amount:,.2f}"


def format_field_name(name: str) -> str:
    """Format the name of a step's field: ``result 1`` for ``observations[0]``."""
    kind, _, place = name.partition("[")
    number = int(place[:-1]) + 1 if place[:-1].isdecimal() and len(place) < 8 else ""
    return f"{_FIELD_NAMES.get(kind, kind)} {number}".strip()


_FIELD_NAMES = {"content": "text", "tool_calls": "call", "observations": "result"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeTitle:
    """Code with its title and definition.

    Attributes:
        code: the qualified code, such as ``mast:step_repetition``.
        title: its title, followed by the taxonomy in brackets if another taxonomy has the same title.
        definition: its definition.
    """

    code: str
    title: str
    definition: str = ""


def find_code_title(code: str) -> CodeTitle:
    """Return the title and definition of a qualified code; an unknown code is its own title."""
    try:
        taxonomy_code = TaxonomyCatalog.load().get_code(code)
    except AgentGuardError:
        return CodeTitle(code=code, title=code)
    title = taxonomy_code.title
    if title in _find_ambiguous_titles():
        title = f"{title} ({code.partition(':')[0]})"
    return CodeTitle(code=code, title=title, definition=taxonomy_code.definition)


@lru_cache(maxsize=1)
def _find_ambiguous_titles() -> frozenset[str]:
    """Return the titles that codes of several taxonomies share."""
    counts = Counter(code.title for taxonomy in TaxonomyCatalog.load() for code in taxonomy.codes)
    return frozenset(title for title, count in counts.items() if count > 1)


def list_code_choices() -> tuple[tuple[str, tuple[CodeTitle, ...]], ...]:
    """Return all codes of all taxonomies by taxonomy title, as choices for a corrected code."""
    return tuple(
        (
            taxonomy.title,
            tuple(
                CodeTitle(code=one.qualified_id, title=one.title, definition=one.definition)
                for one in taxonomy.codes
            ),
        )
        for taxonomy in TaxonomyCatalog.load()
    )
