"""Adapter that completes a plug-in detector with the members of `Detector` that it lacks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from agentguard.detect.base import (
    NO_REQUIREMENTS,
    Detector,
    DetectorFactory,
    Finding,
    RunRequirements,
    SimpleDetector,
)
from agentguard.detect.base_detector import NO_FINDINGS, BaseDetector
from agentguard.detect.run_content import RunContent
from agentguard.detect.run_view import RunView
from agentguard.trajectory.model import Source, Step

_ALL_SOURCES = tuple(Source)


class DetectorAdapter:
    """Complete detector around a plug-in that has at least ``name``, ``observe`` and ``finish``.

    Defaults: the plug-in observes steps of all sources, has no requirements and checks no proposed turns.
    A plug-in that has one of the optional members of `Detector` keeps it.
    """

    def __init__(self, detector: SimpleDetector) -> None:
        self.detector = detector
        self.name = str(getattr(detector, "name", type(detector).__name__))
        self.requirements: RunRequirements = getattr(detector, "requirements", NO_REQUIREMENTS)
        self.observed_sources: Collection[Source] = getattr(detector, "observed_sources", _ALL_SOURCES)
        self.is_stateless: bool = getattr(detector, "is_stateless", False)
        self._check_proposed = getattr(detector, "check_proposed", None)
        self.checks_proposed = self._check_proposed is not None

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Call ``observe`` of the plug-in."""
        return self.detector.observe(step, view)

    def check_proposed(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Call ``check_proposed`` of the plug-in; return no findings if it does not have one."""
        return NO_FINDINGS if self._check_proposed is None else self._check_proposed(step, view)

    def finish(self, view: RunView) -> Iterable[Finding]:
        """Call ``finish`` of the plug-in."""
        return self.detector.finish(view)


def adapt_detector(detector: Detector | SimpleDetector) -> Detector:
    """Return a detector with all members of `Detector`: ``detector``, or an adapter around it."""
    if isinstance(detector, BaseDetector):  # the common case by itself: a union of types takes longer
        return detector
    return detector if isinstance(detector, DetectorAdapter) else DetectorAdapter(detector)


def read_requirements(factory: DetectorFactory) -> RunRequirements:
    """Return the requirements that a factory declares; a function does not declare any."""
    requirements: RunRequirements = getattr(factory, "requirements", NO_REQUIREMENTS)
    return requirements


def can_find(factory: DetectorFactory, content: RunContent) -> bool:
    """Return False if a factory declares that its detectors find nothing in a run."""
    check: Callable[[RunContent], bool] | None = getattr(factory, "can_find", None)
    return check is None or check(content)
