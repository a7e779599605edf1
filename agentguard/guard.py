"""The one place that composes the rooms: what happened, did it fail, which step.

``detect`` finds what went wrong in each step, a localizer ranks the steps, and the result is one `Diagnosis`.
A part that fails is recorded in the diagnosis; it never aborts it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from agentguard.detect.base import DetectorFailure, Finding, detectors
from agentguard.detect.run import detect
from agentguard.errors import AgentGuardError, ConfigError
from agentguard.localize.base import Diagnosis, Localizer, Verdict, localizers
from agentguard.settings import Policy
from agentguard.trajectory.model import Trajectory

DetectorOptions = Mapping[str, Mapping[str, Any] | None]


class Guard:
    """Diagnoses runs with one set of detectors and one localizer.

    Args:
        detectors: detector name to its options (None for the defaults); None runs all with their defaults.
        localizer: name of a registered localizer, or an object that has ``locate``. A localizer that must be
            trained first is given fitted.
        options: options of the localizer, where it is named.
        detector_deadline_s: seconds a detector may take over one step before it counts as failed.

    Raises:
        ConfigError: an option of a detector is wrong, or the localizer must be fitted first.
        UnknownPlugin: there is no detector or localizer of that name.
        ModelFileError: the embedded judge's model file is missing or was changed.
    """

    def __init__(
        self,
        *,
        detectors: DetectorOptions | None = None,
        localizer: str | Localizer = "embedded",
        options: Mapping[str, Any] | None = None,
        detector_deadline_s: float = 0.5,
    ) -> None:
        self.detectors = None if detectors is None else {name: dict(o or {}) for name, o in detectors.items()}
        self.localizer = _localizer(localizer, options or {}) if isinstance(localizer, str) else localizer
        self.detector_deadline_s = detector_deadline_s
        _check(self.detectors)

    @classmethod
    def from_policy(cls, policy: str | Path | Policy, *, localizer: str | Localizer | None = None) -> Guard:
        """Make a guard from a policy or the YAML file of one; ``localizer`` outranks the policy's."""
        settings = policy if isinstance(policy, Policy) else Policy.load(policy)
        chosen = localizer or _localizer(settings.localizer.name, settings.localizer.options())
        return cls(
            detectors=_specs(settings), localizer=chosen, detector_deadline_s=settings.detector_deadline_s
        )

    def diagnose(self, trajectory: Trajectory) -> Diagnosis:
        """Return the diagnosis of a recorded run; does not raise on any valid trajectory."""
        start = time.perf_counter()
        detection = detect(trajectory, self.detectors, deadline_s=self.detector_deadline_s)
        detected = time.perf_counter()
        diagnosis = self._locate(trajectory, detection.findings)
        end = time.perf_counter()
        timing = {
            "detect_s": detected - start,
            "localize_s": end - detected,
            "total_s": end - start,
        }
        failures = (*detection.failures, *diagnosis.failures)
        return replace(diagnosis, findings=tuple(detection.findings), failures=failures, timing=timing)

    def _locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        try:
            return self.localizer.locate(trajectory, findings)
        except Exception as error:  # a plug-in may raise anything; the findings are still worth having
            failure = DetectorFailure(detector=self.localizer.name, step=None, error=type(error).__name__)
            return Diagnosis(
                trajectory_id=trajectory.id,
                method=self.localizer.name,
                verdict=Verdict.ABSTAINED,
                probability=0.5,
                failures=(failure,),
                notes=(f"the localizer failed with {type(error).__name__}; the findings stand",),
            )


def diagnose(trajectory: Trajectory, *, method: str = "embedded") -> Diagnosis:
    """Diagnose one recorded run with all detectors and the localizer ``method``.

    Args:
        trajectory: the run, e.g. ``agentguard.load_trajectory("run.json")``.
        method: a registered localizer that needs no training of its own.

    Returns:
        The diagnosis: verdict, probability that the run failed, ranked hypotheses and findings.

    Raises:
        UnknownPlugin, ConfigError, ModelFileError: as `Guard` does.
    """
    guard = _GUARDS.get(method) or _GUARDS.setdefault(method, Guard(localizer=method))
    return guard.diagnose(trajectory)


_GUARDS: dict[str, Guard] = {}
"""One guard a method, so that the model file is loaded once."""


def _localizer(name: str, options: Mapping[str, Any]) -> Localizer:
    made = localizers().get(name)(**options)
    if not hasattr(made, "locate"):
        raise ConfigError(f"localizer {name!r} learns from annotated runs: fit it first, or name another")
    return cast(Localizer, made)


def _specs(policy: Policy) -> dict[str, Mapping[str, Any]] | None:
    """The detectors a policy asks for: all but those switched off, or just those in ``only``."""
    if not policy.detectors and policy.only is None:
        return None
    names = detectors().names() if policy.only is None else policy.only
    off = {name for name, options in policy.detectors.items() if options is False}
    unknown = set(policy.detectors) - set(detectors().names())
    for name in sorted(unknown):
        detectors().get(name)  # raises UnknownPlugin with the names there are
    return {name: dict(policy.detectors.get(name) or {}) for name in names if name not in off}


def _check(specs: Mapping[str, Mapping[str, Any]] | None) -> None:
    """Make each detector once, so that a wrong option is an error now and not a failure in every run."""
    for name, options in (specs or {}).items():
        try:
            detectors().get(name)(**options)
        except AgentGuardError:
            raise
        except TypeError as error:
            raise ConfigError(f"detector {name!r}: {error}") from None
