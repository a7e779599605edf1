"""``index_prior``: how often each position was at fault in annotated runs, over the agents' steps alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from agentguard.detect.base import Finding
from agentguard.errors import ConfigError
from agentguard.localize._ranking import build_diagnosis, estimate_failure_rate, reject_unknown_options
from agentguard.localize._roles import find_agent_steps
from agentguard.localize.base import Diagnosis, Localizer
from agentguard.trajectory.model import Record, Trajectory

PositionCount = Literal["index", "ordinal"]
_UNSEEN_WEIGHT = 0.01  # weight of a position never seen at fault: below any that was, above none


class PositionPriorTrainer:
    """Learns a prior over positions.

    Args:
        count: ``index`` counts a step's place among all steps, so that a run whose commonest place belongs
            to the environment falls back to the next common one; ``ordinal`` counts among the agents' steps,
            which carries over better between formats that number different things.

    Raises:
        ConfigError: an option does not exist or is out of its range.
    """

    name = "index_prior"

    def __init__(self, *, count: PositionCount = "index", **unknown: object) -> None:
        reject_unknown_options(self.name, unknown)
        if count not in get_args(PositionCount):
            raise ConfigError(
                f"localizer {self.name!r}: count must be one of {', '.join(get_args(PositionCount))}"
            )
        self.count = count

    def fit(self, records: Sequence[Record]) -> Localizer:
        """Count the place of each annotated step; labels on a step no agent made are left out."""
        counts: Counter[int] = Counter()
        for record in records:
            cause = record.annotation.root_cause
            places = {step: place for place, step in _number_agent_steps(record.trajectory, self.count)}
            if cause is not None and cause.step in places:
                counts[places[cause.step]] += 1
        share = estimate_failure_rate(r.annotation.failed for r in records)
        return PositionPriorLocalizer(counts=counts, count=self.count, probability=share)


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionPriorLocalizer:
    """Place to how often it was at fault."""

    counts: Mapping[int, int]
    count: PositionCount
    probability: float
    name: str = "index_prior"

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:  # noqa: ARG002
        """Rank the agents' steps by the prior of their place, the earlier first among equals."""
        scored = [
            (step, self.counts.get(place, 0) + _UNSEEN_WEIGHT / (place + 1))
            for place, step in _number_agent_steps(trajectory, self.count)
        ]
        return build_diagnosis(
            trajectory,
            scored,
            method=self.name,
            reason="the position most often at fault in the training runs",
            probability=self.probability,
        )


def _number_agent_steps(trajectory: Trajectory, count: PositionCount) -> list[tuple[int, int]]:
    """Pairs of place and step index, for every step an agent made."""
    acting = find_agent_steps(trajectory)
    return list(zip(acting if count == "index" else range(len(acting)), acting, strict=True))
