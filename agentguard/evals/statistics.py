"""Statistics of scores: mean, standard deviation, and intervals of rates and of paired differences."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import comb

from agentguard.errors import EvaluationError

_Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """Difference between the first and the second method.

    Attributes:
        mean: of the differences of the runs' scores.
        low, high: 95 % percentile interval over resampled questions (Efron 1979).
        gained, lost: number of runs that only the first, and only the second, got right; a run is right if it
            was right in more than half of the repeats.
        p: of McNemar's exact two-sided test (1947) on them; 1 if both are 0.
    """

    mean: float
    low: float
    high: float
    gained: int
    lost: int
    p: float


def mean(values: Iterable[float]) -> float:
    """Return the arithmetic mean; NaN for an empty input."""
    numbers = list(values)
    return math.fsum(numbers) / len(numbers) if numbers else math.nan


def standard_deviation(values: Iterable[float]) -> float:
    """Return the sample standard deviation; 0 for fewer than two values."""
    numbers = list(values)
    if len(numbers) < 2:
        return 0.0
    average = mean(numbers)
    return math.sqrt(math.fsum((v - average) ** 2 for v in numbers) / (len(numbers) - 1))


def wilson_interval(share: float, n: int, *, z: float = _Z95) -> tuple[float, float]:
    """Return the Wilson score interval of a share of ``n`` trials (Wilson 1927); 95 % by default.

    ``share`` may be a mean over repeats of the same ``n`` runs. ``n`` stays the number of runs, because
    repeats of a run are not new trials.
    """
    if n == 0 or math.isnan(share):
        return math.nan, math.nan
    centre = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def compare_paired(
    scores: Sequence[float],
    other_scores: Sequence[float],
    groups: Sequence[str],
    *,
    draws: int = 2_000,
    seed: int = 0,
) -> PairedDifference:
    """Compare scores of the same runs.

    Args:
        scores, other_scores: a score in [0, 1] per run: right or wrong, or the share of correct repeats.
        groups: the question of each run; runs of one question are resampled together.
        draws: number of resamples.
        seed: of the resampling.

    Raises:
        EvaluationError: the sequences are empty or differ in length.
    """
    if not scores or not len(scores) == len(other_scores) == len(groups):
        raise EvaluationError("a paired comparison needs both scores and the question of each run")
    gaps = [a - b for a, b in zip(scores, other_scores, strict=True)]
    gains = sum(a > 0.5 >= b for a, b in zip(scores, other_scores, strict=True))
    losses = sum(b > 0.5 >= a for a, b in zip(scores, other_scores, strict=True))
    low, high = _bootstrap_interval(gaps, groups, draws, seed)
    return PairedDifference(
        mean=mean(gaps), low=low, high=high, gained=gains, lost=losses, p=mcnemar_p_value(gains, losses)
    )


def mcnemar_p_value(gained: int, lost: int) -> float:
    """Return the exact two-sided p-value of ``gained`` against ``lost`` under even odds."""
    n = gained + lost
    tail = sum(comb(n, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / (1 << n))


def _bootstrap_interval(
    gaps: Sequence[float], groups: Sequence[str], draws: int, seed: int
) -> tuple[float, float]:
    members: dict[str, list[float]] = {}
    for gap, group in zip(gaps, groups, strict=True):
        members.setdefault(group, []).append(gap)
    parts = [(sum(member_gaps), len(member_gaps)) for _, member_gaps in sorted(members.items())]
    rng = random.Random(f"bootstrap:{seed}")  # noqa: S311  (a resampling, not a secret)
    means = []
    for _ in range(draws):
        sample = rng.choices(parts, k=len(parts))
        means.append(sum(total for total, _ in sample) / sum(count for _, count in sample))
    means.sort()
    return means[int(0.025 * draws)], means[min(draws - 1, int(0.975 * draws))]
