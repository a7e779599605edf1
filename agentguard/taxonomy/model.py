"""What a taxonomy of failures is: groups of codes, and relations between codes of different taxonomies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The work a taxonomy comes from: its title, its arXiv id where it has one, what was taken from it."""

    work: str
    arxiv: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A family of codes inside a taxonomy."""

    id: str
    title: str
    definition: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """One kind of failure.

    Attributes:
        taxonomy: name of its taxonomy.
        id: unique in its taxonomy.
        title: a few words, for people.
        definition: when the code applies.
        group: id of its group, if the taxonomy has groups.
        module: memory, reflection, planning, action or system, where the failure belongs to one of them.
        examples: short, made-up cases.
        correction: what to tell an agent that failed like this; may be empty.
    """

    taxonomy: str
    id: str
    title: str
    definition: str
    group: str | None = None
    module: str | None = None
    examples: tuple[str, ...] = ()
    correction: str = ""

    @property
    def qualified(self) -> str:
        """The code as it is written everywhere else: ``"<taxonomy>:<id>"``."""
        return f"{self.taxonomy}:{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taxonomy:
    """A named set of codes."""

    name: str
    title: str
    version: str
    summary: str
    source: Reference
    codes: tuple[Code, ...]
    groups: tuple[Group, ...] = ()

    def code(self, id: str) -> Code | None:
        """The code with that id, or None."""
        return next((code for code in self.codes if code.id == id), None)


class Relation(StrEnum):
    """How a code relates to one of another taxonomy, after the mapping properties of SKOS (W3C, 2009).

    Read a link as "``source`` has a ``relation`` match in ``target``": BROAD says that the target is broader.
    """

    EXACT = "exact"
    CLOSE = "close"
    NARROW = "narrow"
    BROAD = "broad"
    RELATED = "related"

    @property
    def inverse(self) -> Relation:
        """The relation read from the other end."""
        return _INVERSE.get(self, self)


_INVERSE = {Relation.BROAD: Relation.NARROW, Relation.NARROW: Relation.BROAD}


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A relation between two qualified codes."""

    source: str
    relation: Relation
    target: str
    note: str = ""

    def inverted(self) -> Link:
        """The same link read from its other end."""
        return Link(source=self.target, relation=self.relation.inverse, target=self.source, note=self.note)
