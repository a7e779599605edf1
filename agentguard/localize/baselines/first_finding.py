"""Baseline ``first_finding``: a diagnosis from the detectors' findings alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from agentguard.detect.base import Finding
from agentguard.errors import ConfigError
from agentguard.localize.base import BaseLocalizer, Diagnosis, Hypothesis
from agentguard.localize.diagnosis_builder import MAX_HYPOTHESES
from agentguard.options import reject_unknown_options
from agentguard.trajectory.model import Trajectory
from agentguard.verdict import Verdict

Order = Literal["earliest", "probable"]


class FirstFindingLocalizer(BaseLocalizer):
    """Localizer that turns findings into a diagnosis.

    Args:
        order: ``earliest`` ranks findings at or above the threshold by step, ``probable`` ranks by
            probability.
        threshold: minimum probability, in [0, 1], of a finding for the verdict failed.

    Raises:
        ConfigError: an option is unknown or out of range.
    """

    name = "first_finding"

    def __init__(self, *, order: Order = "earliest", threshold: float = 0.5, **unknown: object) -> None:
        reject_unknown_options("localizer", self.name, unknown)
        if order not in get_args(Order):
            raise ConfigError(f"localizer {self.name!r}: order must be one of {', '.join(get_args(Order))}")
        if not 0 <= threshold <= 1:
            raise ConfigError(f"localizer {self.name!r}: threshold must be in [0, 1]")
        self.order, self.threshold = order, threshold

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        """Rank the steps with findings; undecided if all are below the threshold.

        Without findings the verdict is ``no_failure_found``.
        """
        best = _select_best_findings(trajectory, findings)
        ranking = sorted(best.values(), key=self._build_sort_key)[:MAX_HYPOTHESES]
        highest = max((f.probability for f in ranking), default=0.0)
        return Diagnosis(
            trajectory_id=trajectory.id,
            method=self.name,
            verdict=self._select_verdict(ranking, highest),
            probability=highest,
            hypotheses=tuple(_build_hypothesis(trajectory, finding) for finding in ranking),
        )

    def _build_sort_key(self, finding: Finding) -> tuple[bool, float, float]:
        is_below = finding.probability < self.threshold
        if self.order == "earliest" and not is_below:
            return is_below, finding.step, -finding.probability
        return is_below, -finding.probability, finding.step

    def _select_verdict(self, ranked: list[Finding], highest: float) -> Verdict:
        if not ranked:
            return Verdict.NO_FAILURE_FOUND
        return Verdict.FAILED if highest >= self.threshold else Verdict.UNDECIDED


def _select_best_findings(trajectory: Trajectory, findings: Sequence[Finding]) -> dict[int, Finding]:
    best: dict[int, Finding] = {}
    for finding in findings:
        inside = 0 <= finding.step < len(trajectory.steps)
        if inside and (finding.step not in best or finding.probability > best[finding.step].probability):
            best[finding.step] = finding
    return best


def _build_hypothesis(trajectory: Trajectory, finding: Finding) -> Hypothesis:
    return Hypothesis(
        step=finding.step,
        agent=trajectory.steps[finding.step].agent,
        codes=finding.codes,
        probability=finding.probability,
        evidence=finding.evidence,
        correction=finding.correction,
        reason=finding.message,
        detectors=(finding.detector,),
    )
