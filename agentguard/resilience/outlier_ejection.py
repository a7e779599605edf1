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
from agentguard.resilience.base import CallOutcome, Response, Runtime, Send, classify_outcome
from agentguard.resilience.deadline import Deadline
from agentguard.resilience.events import EventKind
from agentguard.resilience.options import SECONDS, StrategyOptions, check_ranges
from agentguard.resilience.stream_timeout import add_end_callback

_PERCENT = (0.0, 100.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierDetection(StrategyOptions):
    """Options of ejection.

    Attributes:
        consecutive_failures: failures in a row that eject a host.
        base_ejection_time_s: first ejection's length; the second in a row is twice as long, and so on.
        max_ejection_time_s: longest ejection.
        interval_s: how often shares of successes are compared; a calm one forgives one ejection.
        max_ejection_percent: upper bound on the hosts that are ejected at once, in percent; at least one may be.
        panic_threshold: percentage of usable hosts below which all hosts are used.
        success_rate_minimum_hosts: hosts with enough calls that there must be before shares are compared.
        success_rate_request_volume: calls in an interval that are enough.
        success_rate_stdev_factor: standard deviations below the mean at which a host is ejected.
    """

    name: ClassVar[str] = "outlier"

    consecutive_failures: int = 5
    base_ejection_time_s: float = 30.0
    max_ejection_time_s: float = 300.0
    interval_s: float = 10.0
    max_ejection_percent: float = 10.0
    panic_threshold: float = 50.0
    success_rate_minimum_hosts: int = 5
    success_rate_request_volume: int = 100
    success_rate_stdev_factor: float = 1.9

    def __post_init__(self) -> None:
        check_ranges(
            self,
            consecutive_failures=(1, 1000),
            success_rate_minimum_hosts=(2, 1000),
            success_rate_request_volume=(1, 1_000_000),
            success_rate_stdev_factor=(0.0, 10.0),
        )
        check_ranges(
            self,
            base_ejection_time_s=SECONDS,
            max_ejection_time_s=SECONDS,
            interval_s=SECONDS,
            max_ejection_percent=_PERCENT,
            panic_threshold=_PERCENT,
        )
        if self.max_ejection_time_s < self.base_ejection_time_s:
            raise ConfigError(
                f"OutlierDetection.max_ejection_time_s must be at least base_ejection_time_s, not {self.max_ejection_time_s:g}"
            )


@dataclass(slots=True)
class HostState:
    """What is known of a host: its calls in this interval, and its ejections."""

    consecutive_failures: int = 0
    successes: int = 0
    total: int = 0
    ejection_count: int = 0
    ejected_until: float = -math.inf
    is_ejected: bool = False


class OutlierDetector:
    """Which hosts may be used. Synchronous, hence atomic; time passes only where it is asked.

    Attributes:
        change_count: grows each time that the hosts which may be used change.
    """

    def __init__(self, hosts: Iterable[str], options: OutlierDetection, runtime: Runtime) -> None:
        self._options, self._runtime = options, runtime
        self._hosts = {host: HostState() for host in hosts}
        self._next_interval_at = runtime.clock.now() + options.interval_s
        self._was_panicking = False
        self._ejected_count = 0
        self._next_change_at = self._next_interval_at  # when the next state changes by itself
        self.change_count = 0

    @property
    def next_change_at(self) -> float:
        """The clock time until which nothing changes but by `record`, `add` and `remove`."""
        return self._next_change_at

    def add(self, host: str) -> None:
        """A new host, with a clean record."""
        self._hosts.setdefault(host, HostState())
        self.change_count += 1

    def remove(self, host: str) -> None:
        """A host that is gone; calls that still run on it count for nothing."""
        gone = self._hosts.pop(host, None)
        self._ejected_count -= gone is not None and gone.is_ejected
        self.change_count += 1

    def snapshot(self) -> dict[str, HostState]:
        """Every host's state, for a status page; not to be changed."""
        self._advance()
        return dict(self._hosts)

    @property
    def is_panicking(self) -> bool:
        """Whether so many hosts are ejected that all are used all the same."""
        self._advance()
        usable = len(self._hosts) - self._ejected_count
        panic = usable < self._options.panic_threshold / 100 * len(self._hosts)
        if panic and not self._was_panicking:
            self._runtime.emit_event(EventKind.PANIC, self._options.name, reason=f"{usable} usable hosts")
        self._was_panicking = panic
        return panic

    def list_usable_hosts(self) -> list[str]:
        """The hosts that may be used, in a fixed order; all of them in a panic."""
        if self.is_panicking:
            return list(self._hosts)
        return self.list_healthy_hosts()

    def list_healthy_hosts(self) -> list[str]:
        """The hosts that are not ejected, in a fixed order, panic or not; may be none."""
        self._advance()
        return [host for host, state in self._hosts.items() if not state.is_ejected]

    def record(self, host: str, is_success: bool) -> None:
        """A call to the host ended; what a host answers while it is ejected changes nothing."""
        if self._runtime.clock.now() >= self._next_change_at:
            self._advance()
        state = self._hosts.get(host)
        if state is None or state.is_ejected:
            return
        state.total += 1
        if is_success:
            state.successes += 1
            state.consecutive_failures = 0
            return
        state.consecutive_failures += 1
        if state.consecutive_failures >= self._options.consecutive_failures:
            self._eject(host, state, f"{state.consecutive_failures} failures in a row")

    def _advance(self) -> None:
        now = self._runtime.clock.now()
        if now < self._next_change_at:
            return
        for host, state in self._hosts.items():
            if state.is_ejected and now >= state.ejected_until:
                state.is_ejected, state.consecutive_failures, state.successes, state.total = False, 0, 0, 0
                self._ejected_count -= 1
                self.change_count += 1
                self._runtime.emit_event(EventKind.READMIT, self._options.name, target=host)
        if now >= self._next_interval_at:
            self._next_interval_at = now + self._options.interval_s
            self._eject_by_success_rate()
            for state in self._hosts.values():
                state.successes = state.total = 0
        self._next_change_at = min(
            [
                self._next_interval_at,
                *(state.ejected_until for state in self._hosts.values() if state.is_ejected),
            ]
        )

    def _eject_by_success_rate(self) -> None:
        """Eject the hosts whose share of successes lies far below the mean (A50's success-rate algorithm)."""
        options = self._options
        shares = {
            host: state.successes / state.total
            for host, state in self._hosts.items()
            if not state.is_ejected and state.total >= options.success_rate_request_volume
        }
        if len(shares) < options.success_rate_minimum_hosts:
            return
        spread = statistics.pstdev(shares.values())
        least = statistics.fmean(shares.values()) - options.success_rate_stdev_factor * spread
        for host, share in shares.items():
            if share < least:
                self._eject(host, self._hosts[host], f"{share:.0%} good where {least:.0%} is the least")

    def _eject(self, host: str, state: HostState, reason: str) -> None:
        """Eject a host unless too many are; its failures in a row stay, so that it may be its turn next."""
        options = self._options
        most = max(1, math.floor(options.max_ejection_percent / 100 * len(self._hosts)))
        if self._ejected_count >= most:
            return
        now = self._runtime.clock.now()
        forgiven = 0 if state.ejection_count == 0 else int((now - state.ejected_until) / options.interval_s)
        state.ejection_count = max(0, state.ejection_count - forgiven) + 1
        seconds = min(options.max_ejection_time_s, options.base_ejection_time_s * state.ejection_count)
        state.is_ejected, state.ejected_until = True, now + seconds
        self._ejected_count += 1
        self.change_count += 1
        self._next_change_at = min(self._next_change_at, state.ejected_until)
        self._runtime.emit_event(
            EventKind.EJECT,
            options.name,
            target=host,
            reason=reason,
            seconds=seconds,
            attempt=state.ejection_count,
        )


class HostBalancer:
    """Sends to the usable hosts in turn and keeps their record: the innermost seam over several hosts."""

    def __init__(self, hosts: Mapping[str, Send], options: OutlierDetection, runtime: Runtime) -> None:
        if not hosts:
            raise ConfigError("HostBalancer.hosts must have at least one host")
        self._senders, self._next_index = dict(hosts), 0
        self.outlier_detector = OutlierDetector(self._senders, options, runtime)

    async def send(self, request: Any, deadline: Deadline) -> Response:
        """Send to the next usable host."""
        usable = self.outlier_detector.list_usable_hosts()
        host = usable[self._next_index % len(usable)]
        self._next_index += 1
        try:
            response = await self._senders[host](request, deadline)
        except BaseException as error:
            self._record(host, classify_outcome(error, deadline))
            raise
        add_end_callback(response, lambda error: self._record(host, classify_outcome(error, deadline)))
        return response

    def _record(self, host: str, outcome: CallOutcome) -> None:
        if outcome is not CallOutcome.IGNORED:
            self.outlier_detector.record(host, outcome is CallOutcome.SUCCESS)
