"""Cards of the built-in detectors: their findings in failed and in passed runs of labelled data sets.

`tools/measure_detectors.py` measures the cards and writes `cards.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import orjson

CARDS_FILE: Final = Path(__file__).with_name("cards.json")
MAX_FALSE_ALARM_SHARE: Final = 0.05
DECIDING_PROBABILITIES: Final = (0.7, 0.9)
"""Thresholds on the probability of a finding that may alone decide that a run failed."""
MIN_PASSED_RUNS: Final = 20
"""Minimum number of passed runs of a data set that can exclude a detector from deciding alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorMeasurement:
    """Measurement of a detector on one data set.

    Attributes:
        dataset: name of the data set.
        failed, passed: number of failed and of passed runs.
        failed_alarms, passed_alarms: number of these runs with a finding of the detector.
        failed_by_probability, passed_by_probability: number of these runs with a finding of at least the
            probability, for each of `DECIDING_PROBABILITIES`.
        located: number of runs in which a finding names the labelled root cause.
        root_causes: number of runs with a finding and a labelled root cause.
    """

    dataset: str
    failed: int
    passed: int
    failed_alarms: int
    passed_alarms: int
    failed_by_probability: tuple[int, ...]
    passed_by_probability: tuple[int, ...]
    located: int
    root_causes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorCard:
    """Measurements of one detector on all data sets, including those without a finding."""

    detector: str
    measurements: tuple[DetectorMeasurement, ...]

    @property
    def decides_alone(self) -> bool:
        """True if a finding alone may decide that a run failed."""
        return self.least_deciding_probability is not None

    @property
    def least_deciding_probability(self) -> float | None:
        """Lowest probability of a finding that alone may decide that a run failed; None without one.

        At this threshold the detector has findings in failed runs. In each data set with 20 passed runs or
        more, at most 5 % of the passed runs have one.
        """
        return next(
            (p for rank, p in enumerate(DECIDING_PROBABILITIES) if self._is_reliable(rank)),
            None,
        )

    def _is_reliable(self, rank: int) -> bool:
        return any(one.failed_by_probability[rank] for one in self.measurements) and all(
            one.passed_by_probability[rank] <= MAX_FALSE_ALARM_SHARE * one.passed
            for one in self.measurements
            if one.passed >= MIN_PASSED_RUNS
        )


@lru_cache(maxsize=1)
def load_cards() -> dict[str, DetectorCard]:
    """Load the cards, by the name of the detector."""
    return {
        name: DetectorCard(detector=name, measurements=tuple(_parse_measurement(row) for row in rows))
        for name, rows in orjson.loads(CARDS_FILE.read_bytes()).items()
    }


def _parse_measurement(row: Mapping[str, Any]) -> DetectorMeasurement:
    by_probability = {key: tuple(row[key]) for key in ("failed_by_probability", "passed_by_probability")}
    return DetectorMeasurement(**{**row, **by_probability})
