"""Leave out the hosts that fail while the others don't: outlier ejection after gRPC's A50 and Envoy.

A host is ejected after so many failures in a row, or when its share of successes lies far below that of the
others; for longer each time, and never so many hosts at once that the rest would drown. Where too few are
left, the failures are probably not the hosts' own, and all of them are used again: panic.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from agentguard.errors import ConfigError
from agentguard.resilience.base import CallOutcome, Response, Runtime, Send, verdict
from agentguard.resilience.deadline import Deadline
from agentguard.resilience.events import EventKind
from agentguard.resilience.options import RATIO, SECONDS, StrategyOptions, check
from agentguard.resilience.stream_timeout import when_done


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier(StrategyOptions):
    """Options of ejection.

    Attributes:
        in_a_row: failures in a row that eject a host.
        base_s: first ejection's length; the second in a row is twice as long, and so on.
        longest_s: longest ejection.
        interval_s: how often shares of successes are compared; a calm one forgives one ejection.
        most: share of the hosts that may be ejected at once; one always may be.
        panic: share of usable hosts below which all of them are used.
        hosts: hosts with enough calls that there must be before shares are compared.
        volume: calls in an interval that are enough.
        stdevs: standard deviations below the mean at which a host is ejected.
    """

    name: ClassVar[str] = "outlier"

    in_a_row: int = 5
    base_s: float = 30.0
    longest_s: float = 300.0
    interval_s: float = 10.0
    most: float = 0.1
    panic: float = 0.5
    hosts: int = 5
    volume: int = 100
    stdevs: float = 1.9

    def __post_init__(self) -> None:
        check(self, in_a_row=(1, 1000), hosts=(2, 1000), volume=(1, 1_000_000), stdevs=(0.0, 10.0))
        check(self, base_s=SECONDS, longest_s=SECONDS, interval_s=SECONDS, most=RATIO, panic=RATIO)
        if self.longest_s < self.base_s:
            raise ConfigError(f"Outlier.longest_s must be at least base_s, not {self.longest_s:g}")


@dataclass(slots=True)
class HostState:
    """What is known of a host: its calls in this interval, and its ejections."""

    in_a_row: int = 0
    good: int = 0
    total: int = 0
    times: int = 0
    until: float = -math.inf
    ejected: bool = False


class Outliers:
    """Which hosts may be used. Synchronous, hence atomic; time passes only where it is asked.

    Attributes:
        changes: grows each time that the hosts which may be used change.
    """

    def __init__(self, hosts: Iterable[str], options: Outlier, runtime: Runtime) -> None:
        self._options, self._runtime = options, runtime
        self._hosts = {host: HostState() for host in hosts}
        self._next = runtime.clock.now() + options.interval_s
        self._panic = False
        self._ejected = 0
        self._due = self._next  # when the next state changes by itself
        self.changes = 0

    @property
    def due(self) -> float:
        """The clock time until which nothing changes but by `record`, `add` and `remove`."""
        return self._due

    def add(self, host: str) -> None:
        """A new host, with a clean record."""
        self._hosts.setdefault(host, HostState())
        self.changes += 1

    def remove(self, host: str) -> None:
        """A host that is gone; calls that still run on it count for nothing."""
        gone = self._hosts.pop(host, None)
        self._ejected -= gone is not None and gone.ejected
        self.changes += 1

    def snapshot(self) -> dict[str, HostState]:
        """Every host's state, for a status page; not to be changed."""
        self._pass_time()
        return dict(self._hosts)

    @property
    def panic(self) -> bool:
        """Whether so many hosts are ejected that all are used all the same."""
        self._pass_time()
        usable = len(self._hosts) - self._ejected
        panic = usable < self._options.panic * len(self._hosts)
        if panic and not self._panic:
            self._runtime.tell(EventKind.PANIC, self._options.name, reason=f"{usable} usable hosts")
        self._panic = panic
        return panic

    def usable(self) -> list[str]:
        """The hosts that may be used, in a fixed order; all of them in a panic."""
        if self.panic:
            return list(self._hosts)
        return self.kept()

    def kept(self) -> list[str]:
        """The hosts that are not ejected, in a fixed order, panic or not; may be none."""
        self._pass_time()
        return [host for host, state in self._hosts.items() if not state.ejected]

    def record(self, host: str, good: bool) -> None:
        """A call to the host ended; what a host answers while it is ejected changes nothing."""
        if self._runtime.clock.now() >= self._due:
            self._pass_time()
        state = self._hosts.get(host)
        if state is None or state.ejected:
            return
        state.total += 1
        if good:
            state.good += 1
            state.in_a_row = 0
            return
        state.in_a_row += 1
        if state.in_a_row >= self._options.in_a_row:
            self._eject(host, state, f"{state.in_a_row} failures in a row")

    def _pass_time(self) -> None:
        now = self._runtime.clock.now()
        if now < self._due:
            return
        for host, state in self._hosts.items():
            if state.ejected and now >= state.until:
                state.ejected, state.in_a_row, state.good, state.total = False, 0, 0, 0
                self._ejected -= 1
                self.changes += 1
                self._runtime.tell(EventKind.READMIT, self._options.name, target=host)
        if now >= self._next:
            self._next = now + self._options.interval_s
            self._compare()
            for state in self._hosts.values():
                state.good = state.total = 0
        self._due = min([self._next, *(state.until for state in self._hosts.values() if state.ejected)])

    def _compare(self) -> None:
        """Eject the hosts whose share of successes lies far below the mean (A50's success-rate algorithm)."""
        options = self._options
        shares = {
            host: state.good / state.total
            for host, state in self._hosts.items()
            if not state.ejected and state.total >= options.volume
        }
        if len(shares) < options.hosts:
            return
        spread = statistics.pstdev(shares.values())
        least = statistics.fmean(shares.values()) - options.stdevs * spread
        for host, share in shares.items():
            if share < least:
                self._eject(host, self._hosts[host], f"{share:.0%} good where {least:.0%} is the least")

    def _eject(self, host: str, state: HostState, reason: str) -> None:
        """Eject a host unless too many are; its failures in a row stay, so that it may be its turn next."""
        options = self._options
        most = max(1, math.floor(options.most * len(self._hosts)))
        if self._ejected >= most:
            return
        now = self._runtime.clock.now()
        forgiven = 0 if state.times == 0 else int((now - state.until) / options.interval_s)
        state.times = max(0, state.times - forgiven) + 1
        seconds = min(options.longest_s, options.base_s * state.times)
        state.ejected, state.until = True, now + seconds
        self._ejected += 1
        self.changes += 1
        self._due = min(self._due, state.until)
        self._runtime.tell(
            EventKind.EJECT, options.name, target=host, reason=reason, seconds=seconds, attempt=state.times
        )


class HostBalancer:
    """Sends to the usable hosts in turn and keeps their record: the innermost seam over several hosts."""

    def __init__(self, hosts: Mapping[str, Send], options: Outlier, runtime: Runtime) -> None:
        if not hosts:
            raise ConfigError("Spread.hosts must have at least one host")
        self._sends, self._turn = dict(hosts), 0
        self.outliers = Outliers(self._sends, options, runtime)

    async def send(self, request: Any, deadline: Deadline) -> Response:
        """Send to the next usable host."""
        usable = self.outliers.usable()
        host = usable[self._turn % len(usable)]
        self._turn += 1
        try:
            response = await self._sends[host](request, deadline)
        except BaseException as error:
            self._record(host, verdict(error, deadline))
            raise
        when_done(response, lambda error: self._record(host, verdict(error, deadline)))
        return response

    def _record(self, host: str, outcome: CallOutcome) -> None:
        if outcome is not CallOutcome.NOTHING:
            self.outliers.record(host, outcome is CallOutcome.GOOD)
