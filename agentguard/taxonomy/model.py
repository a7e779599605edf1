"""What a taxonomy of failures is: groups of codes, and relations between codes of different taxonomies."""

from __future__ import annotations

from collections.abc import Iterable
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
class TaxonomyCode:
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
    def qualified_id(self) -> str:
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
    codes: tuple[TaxonomyCode, ...]
    groups: tuple[Group, ...] = ()

    def get_code(self, id: str) -> TaxonomyCode | None:
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
        return _INVERSE_RELATIONS.get(self, self)


_INVERSE_RELATIONS = {Relation.BROAD: Relation.NARROW, Relation.NARROW: Relation.BROAD}


@dataclass(frozen=True, slots=True, kw_only=True)
class CrosswalkLink:
    """A relation between two qualified codes."""

    source: str
    relation: Relation
    target: str
    note: str = ""

    def invert(self) -> CrosswalkLink:
        """The same link read from its other end."""
        return CrosswalkLink(
            source=self.target, relation=self.relation.inverse, target=self.source, note=self.note
        )


_RELATION_RANK = {relation: rank for rank, relation in enumerate(Relation)}


class Crosswalk:
    """Links between qualified codes, closed under inversion."""

    def __init__(self, links: Iterable[CrosswalkLink]) -> None:
        self._links: dict[str, dict[str, CrosswalkLink]] = {}
        for link in links:
            self._add_link(link)
            self._add_link(link.invert())

    def __len__(self) -> int:
        """Number of links, both directions counted."""
        return sum(len(targets) for targets in self._links.values())

    def links_from(self, code: str, *, to: str | None = None) -> tuple[CrosswalkLink, ...]:
        """Links from ``code``, into the taxonomy ``to`` if given, by closeness and name."""
        found = self._links.get(code, {}).values()
        kept = (link for link in found if to is None or link.target.partition(":")[0] == to)
        return tuple(sorted(kept, key=lambda link: (_RELATION_RANK[link.relation], link.target)))

    def all_links(self) -> tuple[CrosswalkLink, ...]:
        """All links, both directions, by code."""
        return tuple(link for code in sorted(self._links) for link in self.links_from(code))

    def _add_link(self, link: CrosswalkLink) -> None:
        # A pair that is written twice keeps its strongest relation, so the order of files cannot matter.
        targets = self._links.setdefault(link.source, {})
        known = targets.get(link.target)
        if known is None or _RELATION_RANK[link.relation] < _RELATION_RANK[known.relation]:
            targets[link.target] = link
