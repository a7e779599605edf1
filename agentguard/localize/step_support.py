"""Support for the first step of a diagnosis, as reports name it: root cause, likely step or candidate."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from agentguard.localize.base import Diagnosis
from agentguard.store.db.run_summary import RunSummaryRow
from agentguard.verdict import Verdict

MIN_LIKELY_PROBABILITY: Final = 0.25
"""Probability from which a step without evidence is called likely."""


class StepSupport(StrEnum):
    """Support for a step, as reports name it."""

    ROOT_CAUSE = "root cause"
    LIKELY = "likely step"
    CANDIDATE = "candidate"

    @property
    def prefix(self) -> str:
        """Word before ``step N`` in lists; empty for a root cause."""
        return {StepSupport.ROOT_CAUSE: "", StepSupport.LIKELY: "likely "}.get(self, "candidate ")


def rate_step(*, has_failed: bool, has_evidence: bool, probability: float) -> StepSupport:
    """Return the support for a step.

    Args:
        has_failed: the verdict on the run is ``failed``.
        has_evidence: a finding or a quote supports the step, so that it has a code.
        probability: probability that the step is the root cause, if the run failed.
    """
    if has_evidence:
        return StepSupport.ROOT_CAUSE if has_failed else StepSupport.LIKELY
    return StepSupport.LIKELY if probability >= MIN_LIKELY_PROBABILITY else StepSupport.CANDIDATE


def rate_first_hypothesis(diagnosis: Diagnosis) -> StepSupport | None:
    """Return the support for the first hypothesis; None if no step is named."""
    if diagnosis.verdict is Verdict.NO_FAILURE_FOUND or not diagnosis.hypotheses:
        return None
    first = diagnosis.hypotheses[0]
    return rate_step(
        has_failed=diagnosis.verdict is Verdict.FAILED,
        has_evidence=bool(first.codes),
        probability=first.probability,
    )


def rate_summary(row: RunSummaryRow) -> StepSupport | None:
    """Return the support for the step of a run summary; None if it has no step."""
    if row.step is None:
        return None
    return rate_step(
        has_failed=row.verdict == Verdict.FAILED,
        has_evidence=bool(row.code),
        probability=row.step_probability or 0.0,
    )
