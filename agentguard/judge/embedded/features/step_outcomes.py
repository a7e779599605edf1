"""Outcomes of steps: the classification of the results of a step, merged into one."""

from __future__ import annotations

from collections.abc import Sequence

from agentguard.detect._text import to_lower
from agentguard.detect.result_classification import (
    USABLE,
    ResultClassification,
    ResultReason,
    ResultStatus,
    classify_result,
)
from agentguard.trajectory.model import Observation, Source, Step

_FAILED = frozenset({ResultStatus.ERROR, ResultStatus.UNUSABLE})
_SEVERITY_ORDER = {
    ResultStatus.ERROR: 0,
    ResultStatus.UNUSABLE: 1,
    ResultStatus.PARTIAL: 2,
    ResultStatus.OK: 3,
    ResultStatus.EMPTY: 4,
}


def classify_outcome(step: Step) -> ResultClassification | None:
    """Return the most severe classification of a step's results; None if the step has no result.

    An empty result counts only if all results of the step are empty.
    """
    if step.source is Source.ENVIRONMENT:
        results: Sequence[ResultClassification] = (classify_result(to_lower(step.content)),)
    else:
        results = [classify_result(to_lower(one.content), flag=one.is_error) for one in step.observations]
    if not results:
        return None
    worst = min(results, key=lambda one: _SEVERITY_ORDER[one.status])
    return USABLE if step.unknown_parts and worst.status is ResultStatus.EMPTY else worst


def is_error_observation(observation: Observation) -> bool:
    """Return whether an observation is an error, by its flag or by its text."""
    return classify_result(to_lower(observation.content), flag=observation.is_error).is_error


def is_failed(outcome: ResultClassification | None) -> bool:
    """Return whether an outcome is an error or unusable."""
    return outcome is not None and outcome.status in _FAILED


def has_no_action(outcome: ResultClassification | None) -> bool:
    """Return whether the executor stated that there was nothing to execute."""
    return outcome is not None and outcome.reason is ResultReason.NO_ACTION


def is_empty(outcome: ResultClassification | None) -> bool:
    """Return whether an execution returned nothing."""
    return outcome is not None and outcome.status is ResultStatus.EMPTY and not has_no_action(outcome)
