"""Adaptive limit on the number of concurrent calls to an endpoint.

There are two algorithms:

- AIMD, as in TCP (Chiu and Jain, 1989): one more per round trip while calls succeed, a tenth less on
  overload. It only needs signs of overload, so it suits responses of very different lengths.
- Gradient (Netflix concurrency-limits, Envoy's adaptive concurrency filter): it compares latency with the
  best recent latency. It detects a queue before calls fail, and suits calls of similar length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from agentguard.errors import ConfigError
from agentguard.options import Options, option

_LIMIT_RANGE = (1, 100_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyOptions(Options):
    """Options of the concurrency limit.

    Attributes:
        algorithm: ``fixed`` keeps ``initial_limit``; ``aimd`` and ``gradient`` adapt.
        initial_limit: limit at the start.
        min_limit: lower bound on the limit.
        max_limit: upper bound on the limit.
        backoff_ratio: factor by which overload reduces the limit.
        tolerance: multiple of the best latency that the gradient algorithm treats as normal.
        samples: number of latencies per update of the gradient algorithm.
    """

    name: ClassVar[str] = "concurrency"

    algorithm: Literal["fixed", "aimd", "gradient"] = option("aimd", choices=("fixed", "aimd", "gradient"))
    initial_limit: int = option(20, bounds=_LIMIT_RANGE)
    min_limit: int = option(1, bounds=_LIMIT_RANGE)
    max_limit: int = option(1000, bounds=_LIMIT_RANGE)
    backoff_ratio: float = option(0.9, bounds=(0.1, 0.99))
    tolerance: float = option(1.5, bounds=(1.0, 10.0))
    samples: int = option(20, bounds=(1, 10_000))

    def check_consistency(self) -> None:
        """Check that the initial limit is in the range of limits."""
        if not self.min_limit <= self.initial_limit <= self.max_limit:
            raise ConfigError("ConcurrencyOptions.initial_limit must be from min_limit to max_limit")

    def build(self) -> ConcurrencyLimit:
        """Create the limit for the selected algorithm."""
        rules: dict[str, type[FixedLimit | AimdLimit | GradientLimit]] = {
            "fixed": FixedLimit,
            "aimd": AimdLimit,
            "gradient": GradientLimit,
        }
        return rules[self.algorithm](self)


class ConcurrencyLimit(Protocol):
    """Limit on concurrent calls that adapts to the result of each call."""

    value: float

    def update(self, *, started: float, ended: float, inflight: int, overload: bool) -> None:
        """Record a call: its times in seconds, the number of concurrent calls, and overload."""
        ...


class FixedLimit:
    """Limit that does not adapt."""

    def __init__(self, options: ConcurrencyOptions) -> None:
        self.value = float(options.initial_limit)

    def update(self, *, started: float, ended: float, inflight: int, overload: bool) -> None:
        """Do nothing."""


class _DecreasingLimit:
    """Common base of the algorithms: overload reduces the limit once for all concurrent calls."""

    def __init__(self, options: ConcurrencyOptions) -> None:
        self._options, self.value, self._decreased_at = options, float(options.initial_limit), -math.inf

    def _decrease(self, started: float, ended: float) -> None:
        if started >= self._decreased_at:  # the last cut already covers calls that started before it
            self.value, self._decreased_at = (
                max(self._options.min_limit, self.value * self._options.backoff_ratio),
                ended,
            )


class AimdLimit(_DecreasingLimit):
    """Additive increase, multiplicative decrease."""

    def update(self, *, started: float, ended: float, inflight: int, overload: bool) -> None:
        """Decrease on overload; increase only if at least half of the limit was in use."""
        if overload:
            self._decrease(started, ended)
        elif inflight * 2 >= self.value:
            self.value = min(self._options.max_limit, self.value + 1 / self.value)


class GradientLimit(_DecreasingLimit):
    """Gradient algorithm: the new limit is limit x gradient + sqrt(limit).

    The gradient is best latency x tolerance / current latency. The best latency is periodically measured
    again with half the limit. Otherwise a permanent queue would become part of the baseline. Envoy does the
    same with a limit of three.
    """

    PROBE_INTERVAL = 50
    """Number of batches between two measurements of the best latency."""

    def __init__(self, options: ConcurrencyOptions) -> None:
        super().__init__(options)
        self._sum, self._count, self._is_saturated = 0.0, 0, False
        self._min_latency, self._batch_count = math.inf, 0
        self._limit_before_probe, self._ignore_before = (
            0.0,
            -math.inf,
        )  # limit after the measurement, and start of the measurement

    def update(self, *, started: float, ended: float, inflight: int, overload: bool) -> None:
        """Record a latency; after each ``samples`` latencies, move the limit."""
        if overload:
            self._decrease(started, ended)
        elif started >= self._ignore_before:
            self._sum += ended - started
            self._count += 1
            self._is_saturated = self._is_saturated or inflight * 2 >= self.value
            if self._count >= self._options.samples:
                average, is_saturated = self._sum / self._count, self._is_saturated
                self._sum, self._count, self._is_saturated = 0.0, 0, False
                self._update_from_batch(average, is_saturated, ended)

    def _update_from_batch(self, mean_latency: float, is_saturated: bool, now: float) -> None:
        options = self._options
        if self._limit_before_probe:
            self._min_latency, self.value, self._limit_before_probe = (
                mean_latency,
                max(self.value, self._limit_before_probe),
                0.0,
            )
            return
        self._min_latency = min(self._min_latency, mean_latency)
        self._batch_count += 1
        if self._batch_count % self.PROBE_INTERVAL == 0:
            self._limit_before_probe, self._ignore_before = self.value, now
            self.value = max(options.min_limit, self.value / 2)
        elif is_saturated and mean_latency > 0:
            gradient = min(1.0, max(0.5, options.tolerance * self._min_latency / mean_latency))
            target = self.value * gradient + math.sqrt(self.value)
            self.value = min(options.max_limit, max(options.min_limit, 0.8 * self.value + 0.2 * target))


class DurationEstimator:
    """Moving mean and deviation of call durations, as TCP estimates round trips (RFC 6298)."""

    def __init__(self) -> None:
        self.mean = self._deviation = 0.0

    @property
    def upper_bound(self) -> float:
        """Return the seconds within which nearly all calls end; 0 without data."""
        return self.mean + 2 * self._deviation

    def add(self, seconds: float) -> None:
        """Add the duration of a call."""
        if not self.mean:
            self.mean, self._deviation = seconds, seconds / 2
            return
        self._deviation += (abs(seconds - self.mean) - self._deviation) / 4
        self.mean += (seconds - self.mean) / 8
