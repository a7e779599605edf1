"""Cycles of edges from different workloads, found by a beam search.

The rules are those of CSnake (https://arxiv.org/abs/2509.26529), without its effects on the loops after a
delayed one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agentguard.chaos.causality.edges import CausalEdge, EffectKind
from agentguard.chaos.causality.fault_probe import FaultKind, SiteFault

BEAM_WIDTH = 1_000
MAX_DELAYS = 3
MAX_EDGES = 8


@dataclass(frozen=True, slots=True)
class CausalCycle:
    """Faults of which each causes the next, and the last causes the first.

    Attributes:
        edges: the edges; the site of each is the site of the next cause.
    """

    edges: tuple[CausalEdge, ...]

    @property
    def sites(self) -> frozenset[str]:
        """Sites on the cycle."""
        return frozenset(edge.site for edge in self.edges)

    @property
    def faults(self) -> tuple[SiteFault, ...]:
        """Faults on the cycle, in its order."""
        return tuple(edge.cause for edge in self.edges)

    @property
    def workloads(self) -> frozenset[str]:
        """Workloads in which the edges were seen."""
        return frozenset(edge.workload for edge in self.edges)

    def __str__(self) -> str:
        """Return the faults in their order, with the effects between them."""
        parts = [f"{edge.cause} –{edge.effect}→ " for edge in self.edges]
        return "".join(parts) + str(self.edges[0].cause)


def is_compatible(edge: CausalEdge, successor: CausalEdge) -> bool:
    """Return whether the consequence of an edge equals the fault of its successor.

    An error or a decision follows an execution effect with the same signature at the same call site. A delay
    with an execution effect follows a growth at the same call site.
    """
    if edge.site != successor.cause.site:
        return False
    if edge.effect is EffectKind.EXECUTION:
        return successor.cause.kind is not FaultKind.DELAY and bool(edge.signatures & successor.own)
    return (
        successor.cause.kind is FaultKind.DELAY
        and successor.effect is EffectKind.EXECUTION
        and bool(edge.call_sites & successor.own_call_sites)
    )


def find_cycles(
    edges: Iterable[CausalEdge], scores: Mapping[SiteFault, float], *, beam_width: int = BEAM_WIDTH
) -> list[CausalCycle]:
    """Return the cycles, those with the fewest delays and edges first.

    Args:
        edges: edges of all workloads.
        scores: similarity of the consequences of each fault over workloads; the search prefers low ones.
        beam_width: maximum number of chains of a length.
    """
    steps = [edge for edge in dict.fromkeys(edges) if not _is_delay_with_growth(edge)]
    successors = _link_edges(steps)
    cycles: dict[tuple[str, ...], CausalCycle] = {}
    chains: list[tuple[CausalEdge, ...]] = [(edge,) for edge in steps]
    while chains:
        longer: dict[tuple[CausalEdge, ...], None] = {}
        for chain in chains:
            for edge in successors[chain[-1]]:
                if edge is chain[0]:
                    cycle = _canonicalize(chain)
                    cycles.setdefault(tuple(map(_build_key, cycle.edges)), cycle)
                elif len(chain) < MAX_EDGES and _may_extend(chain, edge):
                    longer[*chain, edge] = None
        chains = sorted(longer, key=lambda chain: _score_chain(chain, scores))[:beam_width]
    return sorted(cycles.values(), key=_rank_cycle)


def _is_delay_with_growth(edge: CausalEdge) -> bool:
    return edge.cause.kind is FaultKind.DELAY and edge.effect is EffectKind.SIZE


def _link_edges(edges: Sequence[CausalEdge]) -> dict[CausalEdge, list[CausalEdge]]:
    by_site: dict[str, list[CausalEdge]] = defaultdict(list)
    for edge in edges:
        by_site[edge.cause.site].append(edge)
    return {
        edge: [successor for successor in by_site[edge.site] if is_compatible(edge, successor)]
        for edge in edges
    }


def _may_extend(chain: tuple[CausalEdge, ...], edge: CausalEdge) -> bool:
    delays = sum(one.cause.kind is FaultKind.DELAY for one in (*chain, edge))
    return delays <= MAX_DELAYS and all(one.cause.site != edge.cause.site for one in chain)


def _score_chain(chain: tuple[CausalEdge, ...], scores: Mapping[SiteFault, float]) -> float:
    return sum(scores.get(edge.cause, 0.5) for edge in chain) / len(chain)


def _canonicalize(chain: tuple[CausalEdge, ...]) -> CausalCycle:
    """Rotate a cycle so that its smallest edge is the first."""
    begin = min(range(len(chain)), key=lambda index: _build_key(chain[index]))
    return CausalCycle((*chain[begin:], *chain[:begin]))


def _build_key(edge: CausalEdge) -> str:
    return f"{edge.cause} {edge.consequence}"


def _rank_cycle(cycle: CausalCycle) -> tuple[int, int, str]:
    delays = sum(fault.kind is FaultKind.DELAY for fault in cycle.faults)
    return delays, len(cycle.edges), str(cycle)
