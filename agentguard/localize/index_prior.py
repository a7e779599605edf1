"""``index_prior``: how often each position was at fault, counted over the agents' steps alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentguard.detect.base import Finding
from agentguard.localize.base import Diagnosis, Localizer
from agentguard.localize.ranking import diagnosis, reject, share_failed
from agentguard.localize.roles import agent_steps
from agentguard.trajectory.model import Record, Trajectory

_FLOOR = 0.01  # weight of a position never seen at fault: below any that was, above none


class IndexPrior:
    """Learns a prior over ordinals, because formats differ in what they number besides agents."""

    name = "index_prior"

    def __init__(self, **unknown: object) -> None:
        reject(self.name, unknown)

    def fit(self, records: Sequence[Record]) -> Localizer:
        """Count the ordinal of each annotated step; labels on a step no agent made are left out."""
        counts: Counter[int] = Counter()
        for record in records:
            cause = record.annotation.root_cause
            order = agent_steps(record.trajectory)
            if cause is not None and cause.step in order:
                counts[order.index(cause.step)] += 1
        share = share_failed(r.annotation.failed for r in records)
        return FittedIndexPrior(counts=counts, probability=share)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedIndexPrior:
    """Ordinal position among the agents' steps to how often it was at fault."""

    counts: Mapping[int, int]
    probability: float
    name: str = "index_prior"

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:  # noqa: ARG002
        """Rank the agents' steps by the prior of their ordinal, the earlier first among equals."""
        scored = [
            (step, self.counts.get(ordinal, 0) + _FLOOR / (ordinal + 1))
            for ordinal, step in enumerate(agent_steps(trajectory))
        ]
        return diagnosis(
            trajectory,
            scored,
            method=self.name,
            reason="the position most often at fault in the training runs",
            probability=self.probability,
        )
