"""Counterfactual edges: effects of a fault at one site on the others.

The method is fault causality analysis of CSnake (https://arxiv.org/abs/2509.26529): runs with one fault are
compared with runs of the same workload without a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from scipy.stats import ttest_rel

from agentguard.chaos.causality.fault_probe import CallSite, FaultKind, Signature, SiteFault
from agentguard.chaos.causality.workload_run import WorkloadRun

P_VALUE = 0.1
"""Maximum p-value of a growth in size; the value of CSnake."""


class EffectKind(StrEnum):
    """Kind of a consequence at a site."""

    EXECUTION = "E"
    """Iterations have a signature that no run without a fault has."""
    SIZE = "S+"
    """The number or the size of the iterations is larger than in the runs without a fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalEdge:
    """Consequence of a fault at another site in one workload.

    Attributes:
        cause: the fault.
        site: the site with the consequence.
        effect: kind of the consequence.
        workload: name of the workload.
        signatures: for an execution effect, pairs of call site and new signature.
        call_sites: call sites of the consequence.
        is_enclosing: True if the site encloses one that grew, and so takes longer.
        own: pairs of call site and new signature at the site of the fault.
        own_call_sites: call sites of the site of the fault.
        delay_s: seconds of a delay; 0 for another kind.
    """

    cause: SiteFault
    site: str
    effect: EffectKind
    workload: str
    signatures: frozenset[tuple[CallSite, Signature]] = frozenset()
    call_sites: frozenset[CallSite] = frozenset()
    is_enclosing: bool = False
    own: frozenset[tuple[CallSite, Signature]] = frozenset()
    own_call_sites: frozenset[CallSite] = frozenset()
    delay_s: float = 0.0

    @property
    def consequence(self) -> str:
        """Text ``SITE_EFFECT`` that identifies the consequence."""
        return f"{self.site}_{self.effect}"


def find_edges(
    cause: SiteFault, profiles: Sequence[WorkloadRun], runs: Sequence[WorkloadRun], *, delay_s: float = 0.0
) -> list[CausalEdge]:
    """Return the edges from a fault to the sites that it affects.

    An execution edge needs a signature that all ``runs`` and no ``profiles`` have. A size edge needs growth
    by a one-sided t-test. It is paired, since ``runs`` and ``profiles`` have equal seeds in equal order.

    Args:
        cause: the fault.
        profiles: runs of a workload without a fault.
        runs: runs of the same workload with the fault.
        delay_s: seconds of a delay.

    """
    workload = runs[0].workload
    new = _find_new_signatures(profiles, runs)
    own = frozenset(pair for pair in new if pair[0][-1] == cause.site)
    own_call_sites = frozenset(path for run in runs for path in run.sizes if path[-1] == cause.site)

    def build(site: str, effect: EffectKind, **parts: object) -> CausalEdge:
        return CausalEdge(
            cause=cause,
            site=site,
            effect=effect,
            workload=workload,
            own=own,
            own_call_sites=own_call_sites,
            delay_s=delay_s if cause.kind is FaultKind.DELAY else 0.0,
            **parts,  # type: ignore[arg-type]
        )

    edges = []
    for site in sorted({path[-1] for path, _ in new} - {cause.site}):
        pairs = frozenset(pair for pair in new if pair[0][-1] == site)
        call_sites = frozenset(path for path, _ in pairs)
        edges.append(build(site, EffectKind.EXECUTION, signatures=pairs, call_sites=call_sites))
    grown = _find_grown_call_sites(profiles, runs)
    for site in sorted({path[-1] for path in grown} - {cause.site}):
        call_sites = frozenset(path for path in grown if path[-1] == site)
        edges.append(build(site, EffectKind.SIZE, call_sites=call_sites))
    enclosing = {path[:-1] for path in grown if len(path) > 1} - grown
    for site in sorted({path[-1] for path in enclosing} - {cause.site}):
        call_sites = frozenset(path for path in enclosing if path[-1] == site)
        edges.append(build(site, EffectKind.SIZE, call_sites=call_sites, is_enclosing=True))
    return edges


def _find_new_signatures(
    profiles: Sequence[WorkloadRun], runs: Sequence[WorkloadRun]
) -> set[tuple[CallSite, Signature]]:
    common = set.intersection(*(_list_signatures(run) for run in runs))
    return common.difference(*(_list_signatures(run) for run in profiles))


def _list_signatures(run: WorkloadRun) -> set[tuple[CallSite, Signature]]:
    return {(path, signature) for path, counts in run.signatures.items() for signature in counts}


def _find_grown_call_sites(profiles: Sequence[WorkloadRun], runs: Sequence[WorkloadRun]) -> set[CallSite]:
    paths = set().union(*(run.sizes for run in runs))
    return {
        path
        for path in paths
        if _is_grown([run.sizes[path] for run in profiles], [run.sizes[path] for run in runs])
    }


def _is_grown(before: list[int], after: list[int]) -> bool:
    growth = [late - early for early, late in zip(before, after, strict=True)]
    if len(set(growth)) == 1:
        return growth[0] > 0  # a t-test of a constant is not defined
    return bool(ttest_rel(after, before, alternative="greater").pvalue < P_VALUE)
