"""Cards of the built-in detectors: how often each fires on failed and on passed runs of labelled data sets.

`tools/detector_cards.py` measures the cards and writes `cards.json`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import orjson

CARDS_FILE: Final = Path(__file__).with_name("cards.json")
MAX_FALSE_ALARM_SHARE: Final = 0.05
MIN_PASSED_RUNS: Final = 20
"""Least number of passed runs of a data set that count alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorMeasurement:
    """Measurement of a detector on one data set.

    Attributes:
        dataset: name of the data set.
        failed, passed: number of runs of each outcome.
        failed_alarms, passed_alarms: number of those runs with a finding of the detector.
        located, root_causes: number of runs in which a finding names the labelled root cause, and of runs
            with a finding and a labelled root cause.
    """

    dataset: str
    failed: int
    passed: int
    failed_alarms: int
    passed_alarms: int
    located: int
    root_causes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorCard:
    """Measurements of one detector on all data sets; a data set without a finding counts too."""

    detector: str
    measurements: tuple[DetectorMeasurement, ...]

    @property
    def decides_alone(self) -> bool:
        """True if a finding alone may decide that a run failed.

        The detector found something, and at most 5 % of the passed runs of every data set with 20 passed
        runs or more have a finding.
        """
        return any(one.failed_alarms for one in self.measurements) and all(
            one.passed_alarms <= MAX_FALSE_ALARM_SHARE * one.passed
            for one in self.measurements
            if one.passed >= MIN_PASSED_RUNS
        )


@lru_cache(maxsize=1)
def load_cards() -> dict[str, DetectorCard]:
    """Load the cards by name of the detector."""
    return {
        name: DetectorCard(detector=name, measurements=tuple(DetectorMeasurement(**row) for row in rows))
        for name, rows in orjson.loads(CARDS_FILE.read_bytes()).items()
    }
