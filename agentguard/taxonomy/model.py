"""Model of a taxonomy of failures: groups of codes, and relations between codes of different taxonomies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Publication behind a taxonomy.

    Attributes:
        work: title of the publication.
        arxiv: arXiv id, if there is one.
        note: parts of the publication that the taxonomy uses.
    """

    work: str
    arxiv: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Family of codes in a taxonomy."""

    id: str
    title: str
    definition: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaxonomyCode:
    """Kind of failure.

    Attributes:
        taxonomy: name of its taxonomy.
        id: unique in its taxonomy.
        title: a few words, for reports.
        definition: condition under which the code applies.
        group: id of its group, if the taxonomy has groups.
        module: memory, reflection, planning, action or system, if the failure is a failure of one of them.
        examples: short, invented cases.
        correction: advice to an agent that failed like this; may be empty.
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
        """Qualified name of the code: ``"<taxonomy>:<id>"``."""
        return f"{self.taxonomy}:{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taxonomy:
    """Named set of codes."""

    name: str
    title: str
    version: str
    summary: str
    source: Reference
    codes: tuple[TaxonomyCode, ...]
    groups: tuple[Group, ...] = ()

    def get_code(self, id: str) -> TaxonomyCode | None:
        """Return the code with that id, or None."""
        return next((code for code in self.codes if code.id == id), None)


class Relation(StrEnum):
    """Relation between codes of two taxonomies, after the mapping properties of SKOS (W3C, 2009).

    Read a link as "``source`` has a ``relation`` match in ``target``": BROAD means that the target is
    broader.
    """

    EXACT = "exact"
    CLOSE = "close"
    NARROW = "narrow"
    BROAD = "broad"
    RELATED = "related"

    @property
    def inverse(self) -> Relation:
        """Relation in the opposite direction."""
        return _INVERSE_RELATIONS.get(self, self)


_INVERSE_RELATIONS = {Relation.BROAD: Relation.NARROW, Relation.NARROW: Relation.BROAD}


@dataclass(frozen=True, slots=True, kw_only=True)
class CrosswalkLink:
    """Relation between two qualified codes."""

    source: str
    relation: Relation
    target: str
    note: str = ""

    def invert(self) -> CrosswalkLink:
        """Return the link in the opposite direction."""
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
        """Return the number of links in both directions."""
        return sum(len(targets) for targets in self._links.values())

    def list_links(self, code: str, *, to: str | None = None) -> tuple[CrosswalkLink, ...]:
        """Return the links from ``code`` by closeness and name; ``to`` selects one target taxonomy."""
        links = self._links.get(code, {}).values()
        selected = (link for link in links if to is None or link.target.partition(":")[0] == to)
        return tuple(sorted(selected, key=lambda link: (_RELATION_RANK[link.relation], link.target)))

    def _add_link(self, link: CrosswalkLink) -> None:
        # The closer of two relations between the same codes counts, whatever the order of the files.
        targets = self._links.setdefault(link.source, {})
        existing = targets.get(link.target)
        if existing is None or _RELATION_RANK[link.relation] < _RELATION_RANK[existing.relation]:
            targets[link.target] = link
