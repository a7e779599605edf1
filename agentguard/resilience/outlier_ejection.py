"""Outlier ejection after gRPC's A50 and Envoy: stop using hosts that fail while the others succeed.

A host is ejected after consecutive failures, or if its success rate is far below that of the others. Each
ejection lasts longer. A limit on the number of ejected hosts protects the others from overload. If too few
hosts are healthy, the cause is probably not in the hosts. Then all hosts are used again (panic mode).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from agentguard.errors import ConfigError
from agentguard.options import SECONDS, Options, option
from agentguard.resilience.base import CallOutcome, Response, Runtime, Send, classify_outcome
from agentguard.resilience.deadline import Deadline
from agentguard.resilience.events import EventKind
from agentguard.resilience.stream_timeout import add_end_callback

_PERCENT = (0.0, 100.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierDetectionOptions(Options):
    """Options of outlier ejection.

    Attributes:
        consecutive_failures: consecutive failures that eject a host.
        base_ejection_time_s: duration of the first ejection; it is multiplied by the number of ejections.
        max_ejection_time_s: upper bound on the duration.
        interval_s: interval of the comparison of success rates; an interval without an ejection cancels one.
        max_ejection_percent: upper bound on the ejected hosts in percent; one host may always be ejected.
        panic_threshold: percentage of healthy hosts below which all hosts are used.
        success_rate_minimum_hosts: number of hosts with enough calls that a comparison requires.
        success_rate_request_volume: calls of a host in an interval that a comparison requires.
        success_rate_stdev_factor: standard deviations below the mean at which a host is ejected.
    """

    name: ClassVar[str] = "outlier"

    consecutive_failures: int = option(5, bounds=(1, 1000))
    base_ejection_time_s: float = option(30.0, bounds=SECONDS)
    max_ejection_time_s: float = option(300.0, bounds=SECONDS)
    interval_s: float = option(10.0, bounds=SECONDS)
    max_ejection_percent: float = option(10.0, bounds=_PERCENT)
    panic_threshold: float = option(50.0, bounds=_PERCENT)
    success_rate_minimum_hosts: int = option(5, bounds=(2, 1000))
    success_rate_request_volume: int = option(100, bounds=(1, 1_000_000))
    success_rate_stdev_factor: float = option(1.9, bounds=(0.0, 10.0))

    def check_consistency(self) -> None:
        """Check that the longest ejection is not below the first one."""
        if self.max_ejection_time_s < self.base_ejection_time_s:
            raise ConfigError(
                "OutlierDetectionOptions.max_ejection_time_s must be at least base_ejection_time_s, "
                f"not {self.max_ejection_time_s:g}"
            )


@dataclass(slots=True)
class HostState:
    """State of a host: its calls in this interval and its ejections."""

    consecutive_failures: int = 0
    successes: int = 0
    total: int = 0
    ejection_count: int = 0
    ejected_until: float = -math.inf
    is_ejected: bool = False


class OutlierDetection:
    """Outlier detection among hosts. Its methods are synchronous and therefore atomic; it has no timer.

    Attributes:
        change_count: incremented whenever the set of usable hosts changes.
    """

    def __init__(self, hosts: Iterable[str], options: OutlierDetectionOptions, runtime: Runtime) -> None:
        self._options, self._runtime = options, runtime
        self._hosts = {host: HostState() for host in hosts}
        self._next_interval_at = runtime.clock.now() + options.interval_s
        self._was_panicking = False
        self._ejected_count = 0
        self._next_change_at = self._next_interval_at  # when the state changes without a call
        self.change_count = 0

    @property
    def next_change_at(self) -> float:
        """Return the clock time until which only `record`, `add` and `remove` change the state."""
        return self._next_change_at

    def add(self, host: str) -> None:
        """Add a host without a record."""
        self._hosts.setdefault(host, HostState())
        self.change_count += 1

    def remove(self, host: str) -> None:
        """Remove a host; results of its pending calls are ignored."""
        removed_host = self._hosts.pop(host, None)
        self._ejected_count -= removed_host is not None and removed_host.is_ejected
        self.change_count += 1

    def snapshot(self) -> dict[str, HostState]:
        """Return the state of every host for a status page; do not change it."""
        self._advance()
        return dict(self._hosts)

    @property
    def is_panicking(self) -> bool:
        """Return whether the share of healthy hosts is below the panic threshold."""
        self._advance()
        usable = len(self._hosts) - self._ejected_count
        panic = usable < self._options.panic_threshold / 100 * len(self._hosts)
        if panic and not self._was_panicking:
            self._runtime.emit_event(EventKind.PANIC, self._options.name, reason=f"{usable} usable hosts")
        self._was_panicking = panic
        return panic

    def list_usable_hosts(self) -> list[str]:
        """Return the healthy hosts in a fixed order; all hosts in panic mode."""
        if self.is_panicking:
            return list(self._hosts)
        return self.list_healthy_hosts()

    def list_healthy_hosts(self) -> list[str]:
        """Return the hosts that are not ejected, in a fixed order, also in panic mode; may be empty."""
        self._advance()
        return [host for host, state in self._hosts.items() if not state.is_ejected]

    def record(self, host: str, is_success: bool) -> None:
        """Record the result of a call; results of ejected hosts are ignored."""
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
            self._eject(host, state, f"{state.consecutive_failures} consecutive failures")

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
        """Eject the hosts whose success rate is far below the mean (A50's success-rate algorithm)."""
        options = self._options
        success_shares = {
            host: state.successes / state.total
            for host, state in self._hosts.items()
            if not state.is_ejected and state.total >= options.success_rate_request_volume
        }
        if len(success_shares) < options.success_rate_minimum_hosts:
            return
        spread = statistics.pstdev(success_shares.values())
        min_share = statistics.fmean(success_shares.values()) - options.success_rate_stdev_factor * spread
        for host, share in success_shares.items():
            if share < min_share:
                self._eject(host, self._hosts[host], f"success rate {share:.0%} is below {min_share:.0%}")

    def _eject(self, host: str, state: HostState, reason: str) -> None:
        """Eject a host, unless the limit is reached; it can then be ejected at its next failure."""
        options = self._options
        max_ejected = max(1, math.floor(options.max_ejection_percent / 100 * len(self._hosts)))
        if self._ejected_count >= max_ejected:
            return
        now = self._runtime.clock.now()
        if state.ejection_count:  # each interval since the last ejection cancels one
            interval_count = int((now - state.ejected_until) / options.interval_s)
            state.ejection_count = max(0, state.ejection_count - interval_count)
        state.ejection_count += 1
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
    """Round-robin balancer over the usable hosts that records results; innermost layer of a pipeline."""

    def __init__(self, hosts: Mapping[str, Send], options: OutlierDetectionOptions, runtime: Runtime) -> None:
        if not hosts:
            raise ConfigError("HostBalancer.hosts must have at least one host")
        self._senders, self._next_index = dict(hosts), 0
        self.outlier_detection = OutlierDetection(self._senders, options, runtime)

    async def send(self, request: Any, deadline: Deadline) -> Response:
        """Send the request to the next usable host."""
        usable = self.outlier_detection.list_usable_hosts()
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
            self.outlier_detection.record(host, outcome is CallOutcome.SUCCESS)
