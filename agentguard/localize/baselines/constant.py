"""Baseline ``constant``: the same answer for every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from agentguard.detect.base import Finding
from agentguard.errors import ConfigError
from agentguard.localize.base import BaseLocalizer, Diagnosis, Localizer, Trainable
from agentguard.localize.diagnosis_builder import build_diagnosis, estimate_failure_rate, halve_weights
from agentguard.options import reject_unknown_options
from agentguard.trajectory.model import Record, Trajectory

Position = Literal["commonest", "first", "last"]
_NAME = "constant"
_Label = TypeVar("_Label", int, str)


def build_constant_localizer(*, position: Position = "commonest", **unknown: object) -> Localizer | Trainable:
    """Build the localizer: ``commonest`` learns from annotated runs, ``first`` and ``last`` do not learn.

    Raises:
        ConfigError: an option is unknown, or ``position`` is invalid.
    """
    reject_unknown_options("localizer", _NAME, unknown)
    if position not in get_args(Position):
        raise ConfigError(f"localizer {_NAME!r}: position must be one of {', '.join(get_args(Position))}")
    return (
        MostFrequentLabelTrainer()
        if position == "commonest"
        else FixedEndLocalizer(is_last=position == "last")
    )


class MostFrequentLabelTrainer:
    """Trainer of the most frequent annotated step and, separately, the most frequent annotated agent."""

    name = _NAME

    def fit(self, records: Sequence[Record]) -> Localizer:
        """Count the labels; ties go to the earlier step and to the agent first in the alphabet."""
        causes = [r.annotation.root_cause for r in records if r.annotation.root_cause is not None]
        return MostFrequentLabelLocalizer(
            steps=_sort_by_count([c.step for c in causes if c.step is not None]),
            agents=tuple(name for name, _ in _sort_by_count([c.agent for c in causes if c.agent])),
            probability=estimate_failure_rate(r.annotation.failed for r in records),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MostFrequentLabelLocalizer(BaseLocalizer):
    """Labels of the training runs, the most frequent first."""

    steps: tuple[tuple[int, int], ...]
    agents: tuple[str, ...]
    probability: float
    name: str = _NAME

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:  # noqa: ARG002
        """Return the same ranking for every run, cut to the steps it has."""
        return build_diagnosis(
            trajectory,
            [(step, float(count)) for step, count in self.steps],
            method=self.name,
            reason="the step most often at fault in the training runs",
            probability=self.probability,
            agents=self.agents[:1],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedEndLocalizer(BaseLocalizer):
    """Localizer that ranks the first or the last step of the run highest, then its neighbours."""

    is_last: bool
    name: str = _NAME

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:  # noqa: ARG002
        """Rank the steps from one end of the run."""
        order = range(len(trajectory.steps))
        which = "last" if self.is_last else "first"
        return build_diagnosis(
            trajectory,
            halve_weights(reversed(order) if self.is_last else order),
            method=self.name,
            reason=f"the {which} step of the run",
        )


def _sort_by_count(values: list[_Label]) -> tuple[tuple[_Label, int], ...]:
    return tuple(sorted(Counter(values).items(), key=lambda pair: (-pair[1], pair[0])))
