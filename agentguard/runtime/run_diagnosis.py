"""Diagnosis of a whole run: detectors, then the localizer, which may block on a judge."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from agentguard.detect.base import DetectorFailure, Finding
from agentguard.detect.detection import detect
from agentguard.errors import describe_error
from agentguard.judge.base import add_usage
from agentguard.judge.response_safety import REQUEST_TRIGGER, TAXONOMY, ResponseSafety, SafetyAction
from agentguard.localize.base import Diagnosis, Localizer, OutcomeBasis
from agentguard.localize.embedded import RULES_NOTE, UNDECIDED_NOTE
from agentguard.recover.acceptance.base import ACCEPTANCE_TRIGGER
from agentguard.trajectory.completeness import describe_gaps
from agentguard.trajectory.model import Trajectory
from agentguard.verdict import Verdict

if TYPE_CHECKING:
    from agentguard.recover.acceptance.acceptance_test import AcceptanceTest, AcceptanceVerdict


class DiagnosisAnnotator(Protocol):
    """Function that adds matching schemata to a diagnosis, such as `SchemaFeedback.annotate_diagnosis`."""

    def __call__(
        self, run: Trajectory, diagnosis: Diagnosis, findings: Sequence[Finding], *, rerank: bool
    ) -> Diagnosis:
        """Return the diagnosis with the matching schemata; ``rerank`` also ranks the hypotheses by them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDiagnosis:
    """Diagnosis of recorded runs with fixed components.

    Attributes:
        detectors: options of each detector by name; None runs all detectors.
        detector_deadline_s: time limit in seconds of a detector for one step.
        localizer: localizer that ranks the steps.
        build_failure_localizer: factory of the localizer for runs that are known to have failed.
        acceptance: declared rules for the output; they decide the outcome of a run.
        annotate_diagnosis: function that adds the matching schemata of earlier failures, with a correction.
        safety: assessment of the messages that users saw; None for no assessment.
    """

    detectors: Mapping[str, Mapping[str, Any]] | None
    detector_deadline_s: float
    localizer: Localizer
    build_failure_localizer: Callable[[], Localizer]
    annotate_diagnosis: DiagnosisAnnotator | None = None
    safety: ResponseSafety | None = None
    acceptance: AcceptanceTest | None = None

    def diagnose(self, trajectory: Trajectory, *, failed: bool | None = None) -> Diagnosis:
        """Return the diagnosis of a run; errors of a component become entries of its ``failures``.

        Args:
            trajectory: the run.
            failed: known outcome; None if unknown. A complete verdict of the acceptance rules then decides.
        """
        start = time.perf_counter()
        verdict = self._check_output(trajectory) if failed is None else None
        if verdict is not None and verdict.is_complete:
            failed = not verdict.accepted
        detection = detect(trajectory, self.detectors, deadline_s=self.detector_deadline_s)
        detected = time.perf_counter()
        localizer = self.build_failure_localizer() if failed else self.localizer
        diagnosis = self._annotate(
            trajectory, _locate(localizer, trajectory, detection.findings), detection.findings
        )
        located = time.perf_counter()
        timing = {"detect_s": detected - start, "localize_s": located - detected}
        diagnosis = replace(
            diagnosis,
            findings=tuple(detection.findings),
            failures=(*detection.failures, *diagnosis.failures),
            notes=(*describe_gaps(trajectory), *diagnosis.notes),
        )
        if self.safety is not None:
            diagnosis = add_safety_findings(diagnosis, trajectory, self.safety)
            timing["safety_s"] = time.perf_counter() - located
        if failed is not None:
            diagnosis = apply_known_outcome(diagnosis, failed=failed)
        if verdict is not None:
            diagnosis = _add_acceptance_verdict(diagnosis, verdict)
        return replace(diagnosis, timing=timing | {"total_s": time.perf_counter() - start})

    def _annotate(
        self, trajectory: Trajectory, diagnosis: Diagnosis, findings: Sequence[Finding]
    ) -> Diagnosis:
        if self.annotate_diagnosis is None:
            return diagnosis
        try:
            return self.annotate_diagnosis(trajectory, diagnosis, findings, rerank=False)
        except Exception as error:  # a vectoriser or a store may raise anything; the ranking remains
            failure = DetectorFailure(detector="schemata", step=None, error=describe_error(error))
            return replace(diagnosis, failures=(*diagnosis.failures, failure))

    def _check_output(self, trajectory: Trajectory) -> AcceptanceVerdict | None:
        return None if self.acceptance is None else self.acceptance.check_run(trajectory)


def _add_acceptance_verdict(diagnosis: Diagnosis, verdict: AcceptanceVerdict) -> Diagnosis:
    """Return the diagnosis with the reasons of the refusal, and with the errors of rules."""
    note = f"the acceptance rules refuse the output: {verdict.reason}" if not verdict.accepted else ""
    failures = tuple(
        DetectorFailure(detector=ACCEPTANCE_TRIGGER, step=None, error=check.error)
        for check in verdict.checks
        if check.error
    )
    return replace(
        diagnosis,
        notes=(*([note] if note and verdict.is_complete else []), *diagnosis.notes),
        failures=(*diagnosis.failures, *failures),
    )


def _locate(localizer: Localizer, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
    try:
        return localizer.locate(trajectory, findings)
    except Exception as error:  # a plug-in may raise anything; the caller still gets the findings
        failure = DetectorFailure(detector=localizer.name, step=None, error=type(error).__name__)
        return Diagnosis(
            trajectory_id=trajectory.id,
            method=localizer.name,
            verdict=Verdict.UNDECIDED,
            probability=0.5,
            failures=(failure,),
            notes=(f"the localizer failed with {type(error).__name__}; the findings are valid",),
        )


def apply_known_outcome(diagnosis: Diagnosis, *, failed: bool) -> Diagnosis:
    """Return the diagnosis with the known outcome as its verdict; a run that passed has no hypothesis."""
    notes = tuple(note for note in diagnosis.notes if note not in (RULES_NOTE, UNDECIDED_NOTE))
    return replace(
        diagnosis,
        verdict=Verdict.FAILED if failed else Verdict.NO_FAILURE_FOUND,
        probability=float(failed),
        basis=OutcomeBasis.KNOWN,
        hypotheses=diagnosis.hypotheses if failed else (),
        notes=(f"the outcome is known: the run {'failed' if failed else 'passed'}", *notes),
    )


def add_safety_findings(diagnosis: Diagnosis, run: Trajectory, safety: ResponseSafety) -> Diagnosis:
    """Add a finding for each unsafe message and request, and a failure for each kind of error.

    Safety is independent of the outcome: verdict and hypotheses do not change.
    """
    try:
        replies, requests = safety.assess_messages(run), safety.assess_requests(run)
    except Exception as error:  # a plug-in may raise any exception; the diagnosis remains valid
        failure = DetectorFailure(detector=TAXONOMY, step=None, error=type(error).__name__)
        return replace(diagnosis, failures=(*diagnosis.failures, failure))
    assessments = (*replies, *requests)
    findings = tuple(
        finding for assessment in replies if (finding := assessment.to_finding()) is not None
    ) + tuple(_to_request_finding(finding) for one in requests if (finding := one.to_finding()) is not None)
    faults = {assessment.fault: assessment.step for assessment in reversed(assessments) if assessment.fault}
    failures = tuple(DetectorFailure(detector=TAXONOMY, step=step, error=f) for f, step in faults.items())
    note = (f"response safety could not be decided ({', '.join(faults)})",) if faults else ()
    usage = dict(diagnosis.usage)
    for assessment in assessments:
        add_usage(usage, assessment.usage)
    return replace(
        diagnosis,
        findings=(*diagnosis.findings, *findings),
        failures=(*diagnosis.failures, *failures),
        usage=usage,
        notes=(*diagnosis.notes, *note),
    )


def _to_request_finding(finding: Finding) -> Finding:
    """Return the finding on a reply as a finding on a request, without an action."""
    return replace(
        finding,
        detector=REQUEST_TRIGGER,
        message=finding.message.replace("The reply", "The request", 1),
        correction="",
        data={**finding.data, "action": SafetyAction.ALLOW.value},
    )
