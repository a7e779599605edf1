"""The crosswalk: which code of one taxonomy corresponds to which of another.

Relations are SKOS mapping properties (W3C Recommendation, 18 August 2009). Each pair is written once; the
other direction is computed: exact, close and related read the same from both ends, broad and narrow turn
round. Nothing is chained: that A is close to B and B to C does not make A close to C.
"""

from __future__ import annotations

from collections.abc import Iterable

from agentguard.taxonomy.model import Link, Relation

_STRENGTH = {relation: rank for rank, relation in enumerate(Relation)}


class Crosswalk:
    """Links between qualified codes, closed under inversion."""

    def __init__(self, links: Iterable[Link]) -> None:
        self._links: dict[str, dict[str, Link]] = {}
        for link in links:
            self._add(link)
            self._add(link.inverted())

    def __len__(self) -> int:
        """Number of links, both directions counted."""
        return sum(len(targets) for targets in self._links.values())

    def of(self, code: str, *, to: str | None = None) -> tuple[Link, ...]:
        """Links from ``code``, into the taxonomy ``to`` if given, by closeness and name."""
        found = self._links.get(code, {}).values()
        kept = (link for link in found if to is None or link.target.partition(":")[0] == to)
        return tuple(sorted(kept, key=lambda link: (_STRENGTH[link.relation], link.target)))

    def links(self) -> tuple[Link, ...]:
        """All links, both directions, by code."""
        return tuple(link for code in sorted(self._links) for link in self.of(code))

    def _add(self, link: Link) -> None:
        # A pair that is written twice keeps its strongest relation, so the order of files cannot matter.
        targets = self._links.setdefault(link.source, {})
        known = targets.get(link.target)
        if known is None or _STRENGTH[link.relation] < _STRENGTH[known.relation]:
            targets[link.target] = link
