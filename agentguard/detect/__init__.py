"""Detectors of failures in the steps of a run, and their runner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.detect.base import (
        BaseDetector as BaseDetector,
        Detector as Detector,
        DetectorFactory as DetectorFactory,
        DetectorFailure as DetectorFailure,
        Evidence as Evidence,
        Finding as Finding,
        RunRequirements as RunRequirements,
        SimpleDetector as SimpleDetector,
        detectors as detectors,
    )
    from agentguard.detect.detection import DetectionResult as DetectionResult, detect as detect
    from agentguard.detect.run_view import RunView as RunView
    from agentguard.detect.runner import (
        IncrementalRunner as IncrementalRunner,
        build_detectors as build_detectors,
    )

_EXPORTS = {
    "BaseDetector": "agentguard.detect.base",
    "DetectionResult": "agentguard.detect.detection",
    "Detector": "agentguard.detect.base",
    "DetectorFactory": "agentguard.detect.base",
    "DetectorFailure": "agentguard.detect.base",
    "Evidence": "agentguard.detect.base",
    "Finding": "agentguard.detect.base",
    "IncrementalRunner": "agentguard.detect.runner",
    "RunRequirements": "agentguard.detect.base",
    "RunView": "agentguard.detect.run_view",
    "SimpleDetector": "agentguard.detect.base",
    "build_detectors": "agentguard.detect.runner",
    "detect": "agentguard.detect.detection",
    "detectors": "agentguard.detect.base",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
