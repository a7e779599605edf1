"""Diagnosis of a whole run: detectors, then the localizer, which may ask a judge and wait."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentguard.detect.base import DetectorFailure, Finding
from agentguard.detect.runner import detect
from agentguard.judge.response_safety import ResponseSafety
from agentguard.localize.base import Diagnosis, Localizer, Verdict
from agentguard.localize.llm.safety_findings import add_safety_findings
from agentguard.trajectory.completeness import describe_gaps
from agentguard.trajectory.model import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDiagnosis:
    """Diagnosis of recorded runs with fixed components.

    Attributes:
        detectors: options of each detector by name; None runs all detectors.
        detector_deadline_s: seconds a detector may use for one step.
        localizer: localizer that ranks the steps.
        safety: assessment of the messages that users saw; None makes none.
    """

    detectors: Mapping[str, Mapping[str, Any]] | None
    detector_deadline_s: float
    localizer: Localizer
    safety: ResponseSafety | None = None

    def diagnose(self, trajectory: Trajectory) -> Diagnosis:
        """Return the diagnosis; does not raise on any valid trajectory."""
        start = time.perf_counter()
        detection = detect(trajectory, self.detectors, deadline_s=self.detector_deadline_s)
        detected = time.perf_counter()
        diagnosis = _locate(self.localizer, trajectory, detection.findings)
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
        return replace(diagnosis, timing=timing | {"total_s": time.perf_counter() - start})


def _locate(localizer: Localizer, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
    try:
        return localizer.locate(trajectory, findings)
    except Exception as error:  # a plug-in may raise anything; the caller still gets the findings
        failure = DetectorFailure(detector=localizer.name, step=None, error=type(error).__name__)
        return Diagnosis(
            trajectory_id=trajectory.id,
            method=localizer.name,
            verdict=Verdict.ABSTAINED,
            probability=0.5,
            failures=(failure,),
            notes=(f"the localizer failed with {type(error).__name__}; the findings stand",),
        )
