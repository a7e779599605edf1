"""Metrics of one worker as plain numbers, and their sum over several workers.

A metric set converts to dicts, lists, strings and numbers, so that workers can exchange it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from agentguard_server.proxy.telemetry.metric_definitions import METRIC_DEFINITIONS, OTHER_LABEL

Labels = tuple[str, ...]
MetricSample = tuple[str, Labels, float]
"""Name of a metric, values of its labels, and a number."""

MAX_LABEL_SETS: Final = 20_000


class Histogram:
    """Counts by bucket; the last bucket has the values above all bounds."""

    __slots__ = ("bucket_counts", "sum")

    def __init__(self, buckets: int) -> None:
        self.bucket_counts = [0] * (buckets + 1)
        self.sum = 0.0


class MetricSet:
    """Metrics by name and labels.

    Attributes:
        bounds: upper bounds of the histograms, in seconds.
        values: values of counters and gauges.
        histograms: histograms of durations.
    """

    def __init__(self, bounds: Sequence[float] = ()) -> None:
        self.bounds = tuple(bounds)
        self.values: dict[str, dict[Labels, float]] = {}
        self.histograms: dict[str, dict[Labels, Histogram]] = {}

    def add(self, name: str, labels: Labels = (), amount: float = 1.0) -> None:
        """Add to a counter; above `MAX_LABEL_SETS` label sets, new ones are counted as ``other``."""
        held = self.values.setdefault(name, {})
        if labels not in held and len(held) >= MAX_LABEL_SETS:
            labels = (OTHER_LABEL,) * len(labels)
        held[labels] = held.get(labels, 0.0) + amount

    def set_value(self, name: str, labels: Labels, value: float) -> None:
        """Set a gauge, or a counter that another component maintains."""
        self.values.setdefault(name, {})[labels] = value

    def merge(self, other: MetricSet, *, include_gauges: bool = True) -> None:
        """Add the metrics of another worker, with or without its gauges."""
        for name, held in other.values.items():
            family = METRIC_DEFINITIONS.get(name)
            if family is None or (family.kind == "gauge" and not include_gauges):
                continue
            mine = self.values.setdefault(name, {})
            for labels, value in held.items():
                mine[labels] = (
                    max(mine.get(labels, 0), value)
                    if family.merges_by_maximum
                    else mine.get(labels, 0) + value
                )
        if other.bounds == self.bounds:
            self._merge_histograms(other)

    def _merge_histograms(self, other: MetricSet) -> None:
        for name, held in other.histograms.items():
            mine = self.histograms.setdefault(name, {})
            for labels, given in held.items():
                found = mine.setdefault(labels, Histogram(len(self.bounds)))
                found.bucket_counts = [
                    a + b for a, b in zip(found.bucket_counts, given.bucket_counts, strict=True)
                ]
                found.sum += given.sum

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data."""
        return {
            "bounds": list(self.bounds),
            "numbers": [[n, list(k), v] for n, held in self.values.items() for k, v in held.items()],
            "histograms": [
                [n, list(k), h.bucket_counts, h.sum]
                for n, held in self.histograms.items()
                for k, h in held.items()
            ],
        }

    @classmethod
    def from_dict(cls, data: Any) -> MetricSet:
        """Convert from plain data. Raises ValueError, TypeError or KeyError if the data is not valid."""
        made = cls([float(bound) for bound in data["bounds"]])
        for name, labels, value in data["numbers"]:
            if _is_valid_sample(name, labels):
                made.set_value(name, tuple(map(str, labels)), float(value))
        for name, labels, counts, total in data["histograms"]:
            if _is_valid_sample(name, labels) and len(counts) == len(made.bounds) + 1:
                found = Histogram(len(made.bounds))
                found.bucket_counts, found.sum = [int(one) for one in counts], float(total)
                made.histograms.setdefault(name, {})[tuple(map(str, labels))] = found
        return made

    def add_samples(self, samples: Iterable[MetricSample]) -> None:
        """Add absolute values of other components; unknown metrics are ignored."""
        for name, labels, value in samples:
            if _is_valid_sample(name, labels):
                self.add(name, labels, value)


def _is_valid_sample(name: str, labels: Sequence[str]) -> bool:
    family = METRIC_DEFINITIONS.get(name)
    return family is not None and len(labels) == len(family.label_names)
