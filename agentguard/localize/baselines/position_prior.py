"""Baseline ``index_prior``: frequency of each position as root cause, over agents' steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from agentguard.detect.base import Finding
from agentguard.errors import ConfigError
from agentguard.localize.agent_roles import find_agent_steps
from agentguard.localize.base import BaseLocalizer, Diagnosis, Localizer
from agentguard.localize.diagnosis_builder import build_diagnosis, estimate_failure_rate
from agentguard.options import reject_unknown_options
from agentguard.trajectory.model import Record, Trajectory

PositionCount = Literal["index", "ordinal"]
_UNSEEN_WEIGHT = 0.01  # weight of a position that was never a root cause in training


class PositionPriorTrainer:
    """Trainer of a prior over positions.

    Args:
        count: ``index`` is a step's position among all steps. ``ordinal`` is its position among the agents'
            steps, which transfers better between formats that number steps differently.

    Raises:
        ConfigError: an option is unknown or out of range.
    """

    name = "index_prior"

    def __init__(self, *, count: PositionCount = "index", **unknown: object) -> None:
        reject_unknown_options("localizer", self.name, unknown)
        if count not in get_args(PositionCount):
            raise ConfigError(
                f"localizer {self.name!r}: count must be one of {', '.join(get_args(PositionCount))}"
            )
        self.count = count

    def fit(self, records: Sequence[Record]) -> Localizer:
        """Count the position of each annotated step; labels on steps without an agent are ignored."""
        counts: Counter[int] = Counter()
        for record in records:
            cause = record.annotation.root_cause
            positions = {
                step: position for position, step in _number_agent_steps(record.trajectory, self.count)
            }
            if cause is not None and cause.step in positions:
                counts[positions[cause.step]] += 1
        share = estimate_failure_rate(r.annotation.failed for r in records)
        return PositionPriorLocalizer(counts=counts, count=self.count, probability=share)


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionPriorLocalizer(BaseLocalizer):
    """Localizer that ranks steps by the frequency of their position among the root causes."""

    counts: Mapping[int, int]
    count: PositionCount
    probability: float
    name: str = "index_prior"

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:  # noqa: ARG002
        """Rank the agents' steps by the prior of their position; ties go to the earlier step."""
        scored = [
            (step, self.counts.get(position, 0) + _UNSEEN_WEIGHT / (position + 1))
            for position, step in _number_agent_steps(trajectory, self.count)
        ]
        return build_diagnosis(
            trajectory,
            scored,
            method=self.name,
            reason="the most frequent position of the root cause in the training runs",
            probability=self.probability,
        )


def _number_agent_steps(trajectory: Trajectory, count: PositionCount) -> list[tuple[int, int]]:
    """Return pairs of position and step index for every agent's step."""
    steps = find_agent_steps(trajectory)
    return list(zip(steps if count == "index" else range(len(steps)), steps, strict=True))
