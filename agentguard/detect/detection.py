"""Detection of failures in a recorded run, including the steps that repaired them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agentguard.detect._text import to_lower
from agentguard.detect.base import (
    Detector,
    DetectorFailure,
    Finding,
    SimpleDetector,
)
from agentguard.detect.result_classification import ResultStatus
from agentguard.detect.runner import (
    DEFAULT_DEADLINE_S,
    DetectorSpecs,
    IncrementalRunner,
    build_detectors,
    check_deadline,
    get_sort_key,
)
from agentguard.detect.step_facts import StepFacts
from agentguard.trajectory.model import Source, Step, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionResult:
    """Findings and failures of all detectors in one run.

    Attributes:
        findings: findings without duplicates, by step; within a step, the most probable first.
        failures: errors and exceeded deadlines of detectors.
        seconds: elapsed time of the detection.
    """

    findings: tuple[Finding, ...]
    failures: tuple[DetectorFailure, ...]
    seconds: float


def detect(
    trajectory: Trajectory,
    specs: DetectorSpecs | Iterable[Detector | SimpleDetector] | None = None,
    *,
    deadline_s: float = DEFAULT_DEADLINE_S,
) -> DetectionResult:
    """Run detectors over a recorded run.

    Args:
        trajectory: the run.
        specs: specs for `build_detectors`, or detectors built for this run.
        deadline_s: maximum time of a detector for a step, in seconds.

    Raises:
        UnknownPlugin, ConfigError: see `build_detectors`.
    """
    start = time.perf_counter()
    if specs is None or isinstance(specs, Mapping):
        check_deadline(deadline_s)
        specs = build_detectors(specs, run=trajectory)
        if not specs:
            return DetectionResult(findings=(), failures=(), seconds=time.perf_counter() - start)
    runner = IncrementalRunner.for_run(trajectory, specs, deadline_s=deadline_s)
    findings: list[Finding] = []
    for step in trajectory.steps:
        findings += runner.observe(step)
    findings += runner.finish()
    return DetectionResult(
        findings=tuple(sorted(mark_recoveries(findings, trajectory.steps), key=get_sort_key)),
        failures=tuple(runner.failures),
        seconds=time.perf_counter() - start,
    )


_REPAIRABLE_DETECTORS = frozenset((
    "out_of_range", "persistent_error", "schema_violation", "self_inflicted_error", "tool_error",
    "tool_error_ignored", "unknown_tool", "unparsable_action", "unusable_result_accepted",
    "exact_loop", "near_loop", "no_progress", "oscillation", "paraphrased_repetition",
))  # fmt: skip
"""Detectors whose failures end with the next usable result of the same tool."""

_REVERTIBLE_DETECTORS = frozenset({"task_constraint"})
_REVERSAL_CUES = ("revert", "undo", "restore", "roll back", "rollback", "git checkout", "git reset")
_RECOVERED_SHARE = 0.4
"""Factor on the probability of a repaired failure, which rarely caused the failure of the run."""

_MAX_DISTANCE = 40


def mark_recoveries(findings: Sequence[Finding], steps: Sequence[Step]) -> list[Finding]:
    """Set `Finding.recovered_after` of failures that a later step repaired, and lower their probability.

    A usable result of a later, different call of the same tool, or of the next code block, repairs the
    failure of a call. The run must contain the results. The cost is linear in the number of findings.
    """
    facts: dict[int, StepFacts] = {}

    def get_facts(index: int) -> StepFacts:
        if index not in facts:
            facts[index] = StepFacts(steps[index])
        return facts[index]

    marked = []
    for finding in findings:
        recovered = None
        noticed = finding.step if finding.noticed_at is None else finding.noticed_at
        last = min(len(steps), noticed + 1 + _MAX_DISTANCE)
        if finding.detector in _REPAIRABLE_DETECTORS:
            failed = get_facts(finding.step)
            recovered = next(
                (i for i in range(noticed + 1, last) if _repairs(get_facts(i), failed, steps)), None
            )
        elif finding.detector == "empty_output":
            recovered = _find_continuation(steps, finding.step)
        elif finding.detector in _REVERTIBLE_DETECTORS:
            recovered = next((i for i in range(noticed + 1, last) if _reverts(get_facts(i))), None)
        if recovered is not None:
            finding = replace(
                finding, recovered_after=recovered, probability=finding.probability * _RECOVERED_SHARE
            )
        marked.append(finding)
    return marked


def _repairs(later: StepFacts, failed: StepFacts, steps: Sequence[Step]) -> bool:
    if not later.is_agent or not later.actions or later.family != failed.family or later.key == failed.key:
        return False
    results = later.results
    after = later.step.index + 1
    if not results and after < len(steps) and steps[after].source is Source.ENVIRONMENT:
        results = StepFacts(steps[after]).results
    return bool(results) and all(result.classification.status is ResultStatus.OK for result in results)


def _find_continuation(steps: Sequence[Step], index: int) -> int | None:
    """Return the next step if it is a turn of the same agent; the empty turn is then an artefact."""
    after = index + 1
    continues = after < len(steps) and steps[after].agent == steps[index].agent
    return after if continues and steps[after].source is Source.AGENT else None


def _reverts(later: StepFacts) -> bool:
    text = " ".join(action.key for action in later.actions)
    return any(cue in to_lower(text[:2_000]) for cue in _REVERSAL_CUES)
