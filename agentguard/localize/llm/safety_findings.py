"""Response safety findings of a diagnosis."""

from __future__ import annotations

from dataclasses import replace

from agentguard.detect.base import DetectorFailure
from agentguard.judge.response_safety import TAXONOMY, ResponseSafety
from agentguard.localize.base import Diagnosis
from agentguard.localize.llm.base import USAGE_KEYS
from agentguard.trajectory.model import Trajectory


def add_safety_findings(diagnosis: Diagnosis, run: Trajectory, safety: ResponseSafety) -> Diagnosis:
    """Add a finding for each unsafe message and a failure for each kind of error.

    Safety is independent of the outcome: verdict and hypotheses do not change.
    """
    try:
        assessments = safety.assess_messages(run)
    except Exception as error:  # a plug-in may raise any exception; the diagnosis remains valid
        failure = DetectorFailure(detector=TAXONOMY, step=None, error=type(error).__name__)
        return replace(diagnosis, failures=(*diagnosis.failures, failure))
    findings = tuple(
        finding for assessment in assessments if (finding := assessment.to_finding()) is not None
    )
    faults = {assessment.fault: assessment.step for assessment in reversed(assessments) if assessment.fault}
    failures = tuple(DetectorFailure(detector=TAXONOMY, step=step, error=f) for f, step in faults.items())
    note = (f"response safety could not be settled ({', '.join(faults)})",) if faults else ()
    usage = dict(diagnosis.usage)
    for assessment in assessments:
        for name in USAGE_KEYS:
            value = assessment.usage.get(name)
            if isinstance(value, int | float):
                usage[name] = usage.get(name, 0.0) + value
    return replace(
        diagnosis,
        findings=(*diagnosis.findings, *findings),
        failures=(*diagnosis.failures, *failures),
        usage=usage,
        notes=(*diagnosis.notes, *note),
    )
