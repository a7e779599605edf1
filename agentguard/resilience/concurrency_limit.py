"""How many calls an endpoint can take at once, found while it runs.

Two rules. AIMD is TCP's (Chiu and Jain, 1989): one more a round trip while it goes well, a tenth less when
it does not; it needs nothing but the signs of overload, so it suits answers of very different lengths. The
gradient rule (Netflix concurrency-limits, Envoy's adaptive concurrency filter) compares latency with the
best seen lately and notices a queue before anything fails; it suits calls that are alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from agentguard.errors import ConfigError
from agentguard.resilience.options import StrategyOptions, check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyOptions(StrategyOptions):
    """Options of the limit on calls at once.

    Attributes:
        algorithm: ``fixed`` keeps ``start``; ``aimd`` and ``gradient`` adapt.
        initial_limit: calls at once to begin with.
        min_limit: smallest limit.
        max_limit: largest limit.
        backoff_ratio: by what AIMD multiplies the limit on overload.
        tolerance: how many times the best latency the gradient rule takes for normal.
        samples: calls whose latencies make one update of the gradient rule.
    """

    name: ClassVar[str] = "concurrency"

    algorithm: Literal["fixed", "aimd", "gradient"] = "aimd"
    initial_limit: int = 20
    min_limit: int = 1
    max_limit: int = 1000
    backoff_ratio: float = 0.9
    tolerance: float = 1.5
    samples: int = 20

    def __post_init__(self) -> None:
        sizes = (1, 100_000)
        check_ranges(self, initial_limit=sizes, min_limit=sizes, max_limit=sizes, samples=(1, 10_000))
        check_ranges(self, backoff_ratio=(0.1, 0.99), tolerance=(1.0, 10.0))
        if self.algorithm not in ("fixed", "aimd", "gradient"):
            raise ConfigError(
                f"ConcurrencyOptions.algorithm must be fixed, aimd or gradient, not {self.algorithm!r}"
            )
        if not self.min_limit <= self.initial_limit <= self.max_limit:
            raise ConfigError("ConcurrencyOptions.initial_limit must be from min_limit to max_limit")

    def build(self) -> ConcurrencyLimit:
        """Make the rule that was asked for."""
        rules: dict[str, type[FixedLimit | AimdLimit | GradientLimit]] = {
            "fixed": FixedLimit,
            "aimd": AimdLimit,
            "gradient": GradientLimit,
        }
        return rules[self.algorithm](self)


class ConcurrencyLimit(Protocol):
    """A limit on calls at once that learns from each call's end."""

    value: float

    def update(self, *, started: float, ended: float, inflight: int, overload: bool) -> None:
        """A call ended: its times in seconds, how many ran with it, and whether it met overload."""
        ...


class FixedLimit:
    """Does not learn."""

    def __init__(self, options: ConcurrencyOptions) -> None:
        self.value = float(options.initial_limit)

    def update(self, *, started: float, ended: float, inflight: int, overload: bool) -> None:
        """Change nothing."""


class _DecreasingLimit:
    """What both rules share: overload cuts the limit, once for the calls that ran together."""

    def __init__(self, options: ConcurrencyOptions) -> None:
        self._options, self.value, self._decreased_at = options, float(options.initial_limit), -math.inf

    def _decrease(self, started: float, ended: float) -> None:
        if started >= self._decreased_at:  # a call from before the last cut tells what that cut has answered
            self.value, self._decreased_at = (
                max(self._options.min_limit, self.value * self._options.backoff_ratio),
                ended,
            )


class AimdLimit(_DecreasingLimit):
    """Additive increase, multiplicative decrease."""

    def update(self, *, started: float, ended: float, inflight: int, overload: bool) -> None:
        """Less on overload; more if the limit was used at least by half, for else it says nothing."""
        if overload:
            self._decrease(started, ended)
        elif inflight * 2 >= self.value:
            self.value = min(self._options.max_limit, self.value + 1 / self.value)


class GradientLimit(_DecreasingLimit):
    """limit = limit x gradient + sqrt(limit); the gradient is best latency x tolerance over the present one.

    The best latency is measured anew now and then with half the limit, since a queue that stays would become
    the measure of itself; Envoy does the same with a limit of three.
    """

    PROBE_INTERVAL = 50
    """Batches between two measurements of the best latency."""

    def __init__(self, options: ConcurrencyOptions) -> None:
        super().__init__(options)
        self._sum, self._count, self._is_saturated = 0.0, 0, False
        self._min_latency, self._batch_count = math.inf, 0
        self._limit_before_probe, self._ignore_before = (
            0.0,
            -math.inf,
        )  # the limit to return to, and when the measurement began

    def update(self, *, started: float, ended: float, inflight: int, overload: bool) -> None:
        """Collect a latency; every so many, move the limit."""
        if overload:
            self._decrease(started, ended)
        elif started >= self._ignore_before:
            self._sum += ended - started
            self._count += 1
            self._is_saturated = self._is_saturated or inflight * 2 >= self.value
            if self._count >= self._options.samples:
                average, used = self._sum / self._count, self._is_saturated
                self._sum, self._count, self._is_saturated = 0.0, 0, False
                self._update_from_batch(average, used, ended)

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
            wanted = self.value * gradient + math.sqrt(self.value)
            self.value = min(options.max_limit, max(options.min_limit, 0.8 * self.value + 0.2 * wanted))


class DurationEstimator:
    """How long calls take: a moving mean and deviation, as TCP estimates round trips (RFC 6298)."""

    def __init__(self) -> None:
        self.mean = self._deviation = 0.0

    @property
    def upper_bound(self) -> float:
        """Seconds in which nearly all calls end; 0 while nothing is known."""
        return self.mean + 2 * self._deviation

    def add(self, seconds: float) -> None:
        """A call took so long."""
        if not self.mean:
            self.mean, self._deviation = seconds, seconds / 2
            return
        self._deviation += (abs(seconds - self.mean) - self._deviation) / 4
        self.mean += (seconds - self.mean) / 8
