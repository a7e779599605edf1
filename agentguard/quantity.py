"""Numbers with their nouns in the text of commands, pages and reports."""

from __future__ import annotations


def format_quantity(number: int, singular: str, plural: str = "") -> str:
    """Format a number with its noun: ``1 step``, ``1,200 steps``; ``plural`` is for irregular nouns."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
