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
from agentguard.resilience.options import StrategyOptions, check


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency(StrategyOptions):
    """Options of the limit on calls at once.

    Attributes:
        rule: ``fixed`` keeps ``start``; ``aimd`` and ``gradient`` adapt.
        start: calls at once to begin with.
        least: smallest limit.
        most: largest limit.
        back_off: by what AIMD multiplies the limit on overload.
        tolerance: how many times the best latency the gradient rule takes for normal.
        samples: calls whose latencies make one update of the gradient rule.
    """

    name: ClassVar[str] = "concurrency"

    rule: Literal["fixed", "aimd", "gradient"] = "aimd"
    start: int = 20
    least: int = 1
    most: int = 1000
    back_off: float = 0.9
    tolerance: float = 1.5
    samples: int = 20

    def __post_init__(self) -> None:
        sizes = (1, 100_000)
        check(self, start=sizes, least=sizes, most=sizes, samples=(1, 10_000))
        check(self, back_off=(0.1, 0.99), tolerance=(1.0, 10.0))
        if self.rule not in ("fixed", "aimd", "gradient"):
            raise ConfigError(f"Concurrency.rule must be fixed, aimd or gradient, not {self.rule!r}")
        if not self.least <= self.start <= self.most:
            raise ConfigError("Concurrency.start must be from least to most")

    def build(self) -> ConcurrencyLimit:
        """Make the rule that was asked for."""
        rules: dict[str, type[Fixed | Aimd | Gradient]] = {"fixed": Fixed, "aimd": Aimd, "gradient": Gradient}
        return rules[self.rule](self)


class ConcurrencyLimit(Protocol):
    """A limit on calls at once that learns from each call's end."""

    value: float

    def update(self, *, started: float, ended: float, inflight: int, overload: bool) -> None:
        """A call ended: its times in seconds, how many ran with it, and whether it met overload."""
        ...


class Fixed:
    """Does not learn."""

    def __init__(self, options: Concurrency) -> None:
        self.value = float(options.start)

    def update(self, *, started: float, ended: float, inflight: int, overload: bool) -> None:
        """Change nothing."""


class _Cutting:
    """What both rules share: overload cuts the limit, once for the calls that ran together."""

    def __init__(self, options: Concurrency) -> None:
        self._options, self.value, self._cut_at = options, float(options.start), -math.inf

    def _cut(self, started: float, ended: float) -> None:
        if started >= self._cut_at:  # a call from before the last cut tells what that cut has answered
            self.value, self._cut_at = max(self._options.least, self.value * self._options.back_off), ended


class Aimd(_Cutting):
    """Additive increase, multiplicative decrease."""

    def update(self, *, started: float, ended: float, inflight: int, overload: bool) -> None:
        """Less on overload; more if the limit was used at least by half, for else it says nothing."""
        if overload:
            self._cut(started, ended)
        elif inflight * 2 >= self.value:
            self.value = min(self._options.most, self.value + 1 / self.value)


class Gradient(_Cutting):
    """limit = limit x gradient + sqrt(limit); the gradient is best latency x tolerance over the present one.

    The best latency is measured anew now and then with half the limit, since a queue that stays would become
    the measure of itself; Envoy does the same with a limit of three.
    """

    EVERY = 50
    """Batches between two measurements of the best latency."""

    def __init__(self, options: Concurrency) -> None:
        super().__init__(options)
        self._sum, self._count, self._used = 0.0, 0, False
        self._best, self._batches = math.inf, 0
        self._whole, self._from = 0.0, -math.inf  # the limit to return to, and when the measurement began

    def update(self, *, started: float, ended: float, inflight: int, overload: bool) -> None:
        """Collect a latency; every so many, move the limit."""
        if overload:
            self._cut(started, ended)
        elif started >= self._from:
            self._sum += ended - started
            self._count += 1
            self._used = self._used or inflight * 2 >= self.value
            if self._count >= self._options.samples:
                average, used = self._sum / self._count, self._used
                self._sum, self._count, self._used = 0.0, 0, False
                self._batch(average, used, ended)

    def _batch(self, average: float, used: bool, now: float) -> None:
        options = self._options
        if self._whole:
            self._best, self.value, self._whole = average, max(self.value, self._whole), 0.0
            return
        self._best = min(self._best, average)
        self._batches += 1
        if self._batches % self.EVERY == 0:
            self._whole, self._from = self.value, now
            self.value = max(options.least, self.value / 2)
        elif used and average > 0:
            gradient = min(1.0, max(0.5, options.tolerance * self._best / average))
            wanted = self.value * gradient + math.sqrt(self.value)
            self.value = min(options.most, max(options.least, 0.8 * self.value + 0.2 * wanted))


class Duration:
    """How long calls take: a moving mean and deviation, as TCP estimates round trips (RFC 6298)."""

    def __init__(self) -> None:
        self.mean = self._deviation = 0.0

    @property
    def enough(self) -> float:
        """Seconds in which nearly all calls end; 0 while nothing is known."""
        return self.mean + 2 * self._deviation

    def add(self, seconds: float) -> None:
        """A call took so long."""
        if not self.mean:
            self.mean, self._deviation = seconds, seconds / 2
            return
        self._deviation += (abs(seconds - self.mean) - self._deviation) / 4
        self.mean += (seconds - self.mean) / 8
