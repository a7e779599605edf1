"""Response safety findings of a diagnosis."""

from __future__ import annotations

from dataclasses import replace

from agentguard.detect.base import DetectorFailure, Finding
from agentguard.judge.response_safety import REQUEST_TRIGGER, TAXONOMY, ResponseSafety, SafetyAction
from agentguard.judge.usage import add_usage
from agentguard.localize.base import Diagnosis
from agentguard.trajectory.model import Trajectory


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
    """Return the finding as one about a user's message, which leads to no action."""
    return replace(
        finding,
        detector=REQUEST_TRIGGER,
        message=finding.message.replace("The reply", "The request", 1),
        correction="",
        data={**finding.data, "action": SafetyAction.ALLOW.value},
    )
