"""Codes of taxonomies with their titles and definitions; one that no taxonomy has keeps its name."""

from __future__ import annotations

from dataclasses import dataclass

from agentguard.errors import AgentGuardError
from agentguard.taxonomy.load import Taxonomies


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A code as it is shown."""

    code: str
    title: str
    definition: str = ""


def named(code: str) -> Named:
    """The title and definition of a qualified code."""
    try:
        found = Taxonomies.load().code(code)
    except AgentGuardError:
        return Named(code=code, title=code)
    return Named(code=code, title=found.title, definition=found.definition)


def choices() -> tuple[tuple[str, tuple[Named, ...]], ...]:
    """All codes of all taxonomies, by the taxonomy's title: what a judgement may correct a code to."""
    return tuple(
        (
            taxonomy.title,
            tuple(
                Named(code=one.qualified, title=one.title, definition=one.definition)
                for one in taxonomy.codes
            ),
        )
        for taxonomy in Taxonomies.load()
    )
