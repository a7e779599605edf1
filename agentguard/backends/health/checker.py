"""Active health checks of replicas: heartbeat and known-answer probe, each in a loop per replica.

The heartbeat checks that the server responds at all. The probe asks the model a question with a known answer.
It also detects an engine that hangs behind a healthy server, and a replica that answers wrongly.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from agentguard.backends.base import BackendRequest, UpstreamError
from agentguard.backends.config import HealthOptions, ProbeOptions
from agentguard.backends.health.known_answer_probe import KnownAnswerProbe
from agentguard.backends.replica import Replica
from agentguard.errors import ResilienceError
from agentguard.resilience import Deadline, EventKind, Runtime
from agentguard.resilience.stream_timeout import close_response

_LOG = logging.getLogger(__name__)

HEARTBEAT, PROBE = "heartbeat", "probe"
UNSETTLED_SPEEDUP = 5
"""Factor by which the check interval shrinks while the last outcome differs from the known state."""


class OutcomeStreak:
    """Counter of consecutive equal outcomes."""

    __slots__ = ("_count", "_last")

    def __init__(self) -> None:
        self._count, self._last = 0, ""

    def add(self, outcome: str) -> int:
        """Add an outcome; return the number of consecutive equal outcomes."""
        self._count = self._count + 1 if outcome == self._last else 1
        self._last = outcome
        return self._count


class HealthChecker:
    """Runs the checks of all replicas.

    Args:
        heartbeat: options of the heartbeat; None disables it.
        probe: options of the known-answer probe; None disables it.
        runtime: clock, random generator and observers.
        on_change: called when the health of a replica changes.
    """

    def __init__(
        self,
        heartbeat: HealthOptions | None,
        probe: ProbeOptions | None,
        runtime: Runtime,
        on_change: Callable[[], None],
    ) -> None:
        self._heartbeat, self._probe = heartbeat, probe
        self._runtime, self._on_change = runtime, on_change
        self._tasks: dict[Replica, list[asyncio.Task[None]]] = {}

    def watch(self, replica: Replica) -> None:
        """Start the checks of a replica; needs a running event loop."""
        loops: list[Awaitable[None]] = []
        if self._heartbeat is not None:
            loops.append(
                self._run_check(
                    self._heartbeat.interval_s, HeartbeatCheck(self._heartbeat, replica, self.report)
                )
            )
        if self._probe is not None and replica.options.probe and KnownAnswerProbe.supports(replica):
            loops.append(
                self._run_check(self._probe.interval_s, KnownAnswerCheck(self._probe, replica, self.report))
            )
        self._tasks[replica] = [asyncio.ensure_future(loop) for loop in loops]

    async def unwatch(self, replica: Replica) -> None:
        """Stop the checks of a replica."""
        tasks = self._tasks.pop(replica, [])
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def aclose(self) -> None:
        """Stop all checks."""
        for replica in [*self._tasks]:
            await self.unwatch(replica)

    def report(self, replica: Replica, kind: EventKind, source: str) -> None:
        """Record the result of a check: `DOWN`, `UP` or `CORRUPT`; ``source`` is the name of the check."""
        before = (replica.is_corrupt, frozenset(replica.failed_checks))
        if kind is EventKind.CORRUPT:
            replica.is_corrupt = True
        elif kind is EventKind.DOWN:
            replica.failed_checks.add(source)
        else:
            replica.failed_checks.discard(source)
            replica.is_corrupt = replica.is_corrupt and source != PROBE
        if (replica.is_corrupt, frozenset(replica.failed_checks)) != before:
            self._on_change()
            self._runtime.emit_event(kind, source, target=replica.name)

    async def _run_check(self, interval_s: float, check: Callable[[Runtime], Awaitable[bool]]) -> None:
        # The first check starts at a random time, so that replicas are not all checked at the same moment.
        await self._runtime.clock.sleep(self._runtime.rng.random() * min(interval_s, 1.0))
        while True:
            settled = True
            try:
                settled = await check(self._runtime)
            except Exception as error:  # not evidence about the replica; the loop must continue
                _LOG.warning("a health check failed: %s", type(error).__name__)
            await self._runtime.clock.sleep(interval_s if settled else interval_s / UNSETTLED_SPEEDUP)


ReportCallback = Callable[[Replica, EventKind, str], None]


class HeartbeatCheck:
    """Heartbeat of one replica."""

    def __init__(self, options: HealthOptions, replica: Replica, report: ReportCallback) -> None:
        self._options, self._replica, self._report = options, replica, report
        self._request = BackendRequest(target=options.path, method="GET")
        self._streak = OutcomeStreak()

    async def __call__(self, runtime: Runtime) -> bool:
        """Check once; return whether the outcome equals the known state. If not, the next check is sooner."""
        alive = await self._is_alive(runtime)
        times = self._streak.add("alive" if alive else "dead")
        if alive and times >= self._options.healthy_threshold:
            self._report(self._replica, EventKind.UP, HEARTBEAT)
        elif not alive and times >= self._options.unhealthy_threshold:
            self._report(self._replica, EventKind.DOWN, HEARTBEAT)
        return alive is (HEARTBEAT not in self._replica.failed_checks)

    async def _is_alive(self, runtime: Runtime) -> bool:
        deadline = Deadline.after(self._options.timeout_s, clock=runtime.clock)
        try:
            answer = await deadline.run(self._replica.backend.send(self._request, deadline), "the heartbeat")
        except UpstreamError as error:
            return error.response.status < 500
        except (ResilienceError, OSError, EOFError):
            return False
        await close_response(answer)
        return True


class KnownAnswerCheck:
    """Known-answer probe of one replica."""

    def __init__(self, options: ProbeOptions, replica: Replica, report: ReportCallback) -> None:
        self._options, self._replica, self._report = options, replica, report
        self._streak = OutcomeStreak()

    async def __call__(self, runtime: Runtime) -> bool:
        """Probe once; return whether the outcome equals the known state. If not, the next probe is sooner."""
        options = self._options
        outcome = self._replica.probe_outcome = await KnownAnswerProbe(options, self._replica).run(runtime)
        repetitions = self._streak.add(outcome)
        if outcome == "right" and repetitions >= options.success_threshold:
            self._report(self._replica, EventKind.UP, PROBE)
        elif outcome == "wrong" and repetitions >= options.failure_threshold:
            self._report(self._replica, EventKind.CORRUPT, PROBE)
        elif outcome == "silent" and repetitions >= options.unresponsive_threshold:
            self._report(self._replica, EventKind.DOWN, PROBE)
        replica = self._replica
        expected_outcome = (
            "wrong" if replica.is_corrupt else "silent" if PROBE in replica.failed_checks else "right"
        )
        return outcome in (expected_outcome, "unclear")
