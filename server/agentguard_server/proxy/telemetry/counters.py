"""Counts of one worker, as plain numbers, and how those of several are added up.

Everything is made of dicts, lists, texts and numbers, so that a worker can hand its counts to another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from agentguard_server.proxy.telemetry.metric_definitions import FAMILIES, OTHER

Labels = tuple[str, ...]
Figure = tuple[str, Labels, float]
"""Name of a family, values of its labels, and a number."""

MOST_FIGURES: Final = 20_000


class Histogram:
    """Counts by bucket; the last one is what lies above all bounds."""

    __slots__ = ("counts", "sum")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * (buckets + 1)
        self.sum = 0.0


class MetricSet:
    """Numbers by family and labels.

    Attributes:
        bounds: upper bounds of the histograms, in seconds.
        numbers: of counters and gauges.
        histograms: of times.
    """

    def __init__(self, bounds: Sequence[float] = ()) -> None:
        self.bounds = tuple(bounds)
        self.numbers: dict[str, dict[Labels, float]] = {}
        self.histograms: dict[str, dict[Labels, Histogram]] = {}

    def add(self, name: str, labels: Labels = (), by: float = 1.0) -> None:
        """Count; what has too many labels already is counted as ``other``."""
        held = self.numbers.setdefault(name, {})
        if labels not in held and len(held) >= MOST_FIGURES:
            labels = (OTHER,) * len(labels)
        held[labels] = held.get(labels, 0.0) + by

    def put(self, name: str, labels: Labels, value: float) -> None:
        """Set a gauge, or a counter that somebody else counts."""
        self.numbers.setdefault(name, {})[labels] = value

    def merge(self, other: MetricSet, *, gauges: bool = True) -> None:
        """Add another worker's; ``gauges`` says whether what only holds now counts."""
        for name, held in other.numbers.items():
            family = FAMILIES.get(name)
            if family is None or (family.kind == "gauge" and not gauges):
                continue
            mine = self.numbers.setdefault(name, {})
            for labels, value in held.items():
                mine[labels] = max(mine.get(labels, 0), value) if family.most else mine.get(labels, 0) + value
        if other.bounds == self.bounds:
            self._merge_histograms(other)

    def _merge_histograms(self, other: MetricSet) -> None:
        for name, held in other.histograms.items():
            mine = self.histograms.setdefault(name, {})
            for labels, given in held.items():
                found = mine.setdefault(labels, Histogram(len(self.bounds)))
                found.counts = [a + b for a, b in zip(found.counts, given.counts, strict=True)]
                found.sum += given.sum

    def data(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "bounds": list(self.bounds),
            "numbers": [[n, list(k), v] for n, held in self.numbers.items() for k, v in held.items()],
            "histograms": [
                [n, list(k), h.counts, h.sum] for n, held in self.histograms.items() for k, h in held.items()
            ],
        }

    @classmethod
    def of(cls, data: Any) -> MetricSet:
        """From plain data. Raises ValueError, TypeError or KeyError where it is something else."""
        made = cls([float(bound) for bound in data["bounds"]])
        for name, labels, value in data["numbers"]:
            if _fits(name, labels):
                made.put(name, tuple(map(str, labels)), float(value))
        for name, labels, counts, total in data["histograms"]:
            if _fits(name, labels) and len(counts) == len(made.bounds) + 1:
                found = Histogram(len(made.bounds))
                found.counts, found.sum = [int(one) for one in counts], float(total)
                made.histograms.setdefault(name, {})[tuple(map(str, labels))] = found
        return made

    def take(self, figures: Iterable[Figure]) -> None:
        """Add figures that others hold, each with its whole value; those of no family are left out."""
        for name, labels, value in figures:
            if _fits(name, labels):
                self.add(name, labels, value)


def _fits(name: str, labels: Sequence[str]) -> bool:
    family = FAMILIES.get(name)
    return family is not None and len(labels) == len(family.labels)
