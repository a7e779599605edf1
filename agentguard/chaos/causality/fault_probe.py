"""Probe of a workload: it records the iterations at each site, and injects faults into them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum

from agentguard.resilience.clock import Clock

CallSite = tuple[str, ...]
"""Sites that enclose an iteration, outermost first; a new task inherits them."""

Signature = tuple[str, ...]
"""Kinds of the events in an iteration, in order, without an event after an equal one."""


class FaultKind(StrEnum):
    """Kind of a fault at a site."""

    ERROR = "error"
    """The iteration raises the exception of its throw point."""
    DELAY = "delay"
    """The iteration begins later; this represents contention."""
    NEGATE = "negate"
    """The decision has the opposite value."""


@dataclass(frozen=True, slots=True, order=True)
class SiteFault:
    """Fault of a kind at a site."""

    site: str
    kind: FaultKind

    def __str__(self) -> str:
        """Return ``KIND@SITE``."""
        return f"{self.kind}@{self.site}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultInjection:
    """Fault with its place in time.

    Attributes:
        fault: kind and site.
        count: number of iterations of the site that get the fault; None for all.
        start_s, end_s: virtual seconds between which iterations get the fault.
        delay_s: seconds of a delay.
    """

    fault: SiteFault
    count: int | None = 1
    start_s: float = 0.0
    end_s: float = float("inf")
    delay_s: float = 1.0


class FaultProbe:
    """Interface between a workload and a campaign.

    The workload marks each iteration of a logical step, each decision and each successful unit of work. An
    iteration without a fault costs a few microseconds and no virtual time.

    Args:
        clock: virtual time of the run.
        injections: faults of the run.

    Attributes:
        clock: virtual time of the run.
        signatures: call site, with the site at its end, to the number of iterations by signature.
        sizes: call site, with the site at its end, to the sum of the sizes of its iterations.
        faults: faults that the sites permit.
        damping: number of times that each damping element acted, by name.
        injected: number of iterations that got a fault.
        completions: virtual seconds at which units of work were successful.
    """

    def __init__(self, clock: Clock, injections: Sequence[FaultInjection] = ()) -> None:
        self.clock = clock
        self.signatures: dict[CallSite, Counter[Signature]] = defaultdict(Counter)
        self.sizes: Counter[CallSite] = Counter()
        self.faults: set[SiteFault] = set()
        self.damping: Counter[str] = Counter()
        self.injected = 0
        self.completions: list[float] = []
        self._injections = {injection.fault: injection for injection in injections}
        self._counts: Counter[SiteFault] = Counter()

    @asynccontextmanager
    async def iteration(self, site: str, *, size: int = 1) -> AsyncIterator[Iteration]:
        """Mark one iteration of a step; an exception that leaves it is one of its events.

        Args:
            site: name of the step, such as ``proxy.attempt``.
            size: units of work, such as tokens.
        """
        iteration = Iteration(site, self._take)
        path = (*_enclosing.get(), site)
        token = _enclosing.set(path)
        try:
            delay = self._take(SiteFault(site, FaultKind.DELAY))
            if delay is not None:
                await self.clock.sleep(delay.delay_s)
            yield iteration
        except Exception as raised:
            iteration.record(type(raised).__name__)
            raise
        finally:
            _enclosing.reset(token)
            self.sizes[path] += size
            self.signatures[path][iteration.signature] += 1

    def decide(self, site: str, value: bool) -> bool:
        """Return the value of a decision, or its opposite if the decision gets a fault."""
        if self._take(SiteFault(site, FaultKind.NEGATE)):
            value = not value
        path = (*_enclosing.get(), site)
        self.sizes[path] += 1
        self.signatures[path][(str(value),)] += 1
        return value

    def complete(self) -> None:
        """Record a successful unit of work: the campaign compares their rate with a run without a fault."""
        self.completions.append(self.clock.now())

    def damp(self, element: str) -> None:
        """Record that an element acted that limits cascades, such as a retry budget or a circuit breaker."""
        self.damping[element] += 1

    def _take(self, fault: SiteFault) -> FaultInjection | None:
        """Return the injection of a fault if this iteration gets it."""
        self.faults.add(fault)
        injection = self._injections.get(fault)
        if injection is None or not injection.start_s <= self.clock.now() < injection.end_s:
            return None
        if injection.count is not None and self._counts[fault] >= injection.count:
            return None
        self._counts[fault] += 1
        self.injected += 1
        return injection


class Iteration:
    """One iteration of a step."""

    __slots__ = ("_events", "_take", "site")

    def __init__(self, site: str, take: Callable[[SiteFault], FaultInjection | None]) -> None:
        self.site = site
        self._take = take
        self._events: list[str] = []

    def record(self, kind: str) -> None:
        """Record an event in this iteration, such as ``retried``."""
        if not self._events or self._events[-1] != kind:
            self._events.append(kind)

    def throw_point(self, error: type[Exception]) -> None:
        """Mark a place at which the step may fail. Raises ``error`` if the iteration gets this fault."""
        if self._take(SiteFault(self.site, FaultKind.ERROR)):
            raise error(f"injected at {self.site}")

    @property
    def signature(self) -> Signature:
        """Kinds of the events."""
        return tuple(self._events)


_enclosing: ContextVar[CallSite] = ContextVar("agentguard_enclosing_sites", default=())
