"""Look after replicas without waiting for requests to fail: heartbeat and canary, each a loop a replica.

The heartbeat asks whether the server answers at all. The canary asks the model something that is known, so it
also finds an engine that hangs behind a server that is well, and one that answers wrongly.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from agentguard.backends.base import BackendRequest, UpstreamError
from agentguard.backends.config import CanaryOptions, HealthOptions
from agentguard.backends.health.known_answer_probe import KnownAnswerProbe
from agentguard.backends.replica import Replica
from agentguard.errors import ResilienceError
from agentguard.resilience import Deadline, EventKind, Runtime
from agentguard.resilience.stream_timeout import discard

_LOG = logging.getLogger(__name__)

HEARTBEAT, CANARY = "heartbeat", "canary"
SOONER = 5
"""How many times sooner than usual a replica is looked at again that was not found as it was."""


class Streak:
    """Counts what comes several times in a row, and says when that is often enough."""

    __slots__ = ("_count", "_last")

    def __init__(self) -> None:
        self._count, self._last = 0, ""

    def add(self, outcome: str) -> int:
        """How often this outcome has come in a row now."""
        self._count = self._count + 1 if outcome == self._last else 1
        self._last = outcome
        return self._count


class HealthChecker:
    """The loops over all replicas.

    Args:
        heartbeat: options, None for none.
        canary: options, None for none.
        runtime: time, chance and observers.
        changed: called when what was found about a replica changed.
    """

    def __init__(
        self,
        heartbeat: HealthOptions | None,
        canary: CanaryOptions | None,
        runtime: Runtime,
        changed: Callable[[], None],
    ) -> None:
        self._heartbeat, self._canary = heartbeat, canary
        self._runtime, self._changed = runtime, changed
        self._tasks: dict[Replica, list[asyncio.Task[None]]] = {}

    def watch(self, replica: Replica) -> None:
        """Begin with a replica; in the running loop."""
        loops: list[Awaitable[None]] = []
        if self._heartbeat is not None:
            loops.append(
                self._loop(self._heartbeat.interval_s, HeartbeatCheck(self._heartbeat, replica, self.found))
            )
        if self._canary is not None and replica.options.canary and KnownAnswerProbe.suits(replica):
            loops.append(
                self._loop(self._canary.interval_s, KnownAnswerCheck(self._canary, replica, self.found))
            )
        self._tasks[replica] = [asyncio.ensure_future(loop) for loop in loops]

    async def unwatch(self, replica: Replica) -> None:
        """End with a replica."""
        tasks = self._tasks.pop(replica, [])
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def aclose(self) -> None:
        """End with all."""
        for replica in [*self._tasks]:
            await self.unwatch(replica)

    def found(self, replica: Replica, kind: EventKind, by: str) -> None:
        """Take note of what a look at a replica has found: `DOWN`, `UP` or `CORRUPT`, from a loop by name."""
        before = (replica.corrupt, frozenset(replica.down))
        if kind is EventKind.CORRUPT:
            replica.corrupt = True
        elif kind is EventKind.DOWN:
            replica.down.add(by)
        else:
            replica.down.discard(by)
            replica.corrupt = replica.corrupt and by != CANARY
        if (replica.corrupt, frozenset(replica.down)) != before:
            self._changed()
            self._runtime.tell(kind, by, target=replica.name)

    async def _loop(self, interval_s: float, look: Callable[[Runtime], Awaitable[bool]]) -> None:
        # The first look comes at a random time, so that not all replicas are asked in one instant.
        await self._runtime.clock.sleep(self._runtime.rng.random() * min(interval_s, 1.0))
        while True:
            settled = True
            try:
                settled = await look(self._runtime)
            except Exception as error:  # it says nothing of the replica, and must not be the last look
                _LOG.warning("a look at a replica failed: %s", type(error).__name__)
            await self._runtime.clock.sleep(interval_s if settled else interval_s / SOONER)


Found = Callable[[Replica, EventKind, str], None]


class HeartbeatCheck:
    """One replica's heartbeat."""

    def __init__(self, options: HealthOptions, replica: Replica, found: Found) -> None:
        self._options, self._replica, self._found = options, replica, found
        self._request = BackendRequest(target=options.path, method="GET")
        self._streak = Streak()

    async def __call__(self, runtime: Runtime) -> bool:
        """Ask once. Returns whether what was heard is what is known; if not, it is looked at again soon."""
        alive = await self._alive(runtime)
        times = self._streak.add("alive" if alive else "dead")
        if alive and times >= self._options.up_after:
            self._found(self._replica, EventKind.UP, HEARTBEAT)
        elif not alive and times >= self._options.down_after:
            self._found(self._replica, EventKind.DOWN, HEARTBEAT)
        return alive is (HEARTBEAT not in self._replica.down)

    async def _alive(self, runtime: Runtime) -> bool:
        deadline = Deadline.after(self._options.timeout_s, clock=runtime.clock)
        try:
            answer = await deadline.run(self._replica.backend.send(self._request, deadline), "the heartbeat")
        except UpstreamError as error:
            return error.answer.status < 500
        except (ResilienceError, OSError, EOFError):
            return False
        await discard(answer)
        return True


class KnownAnswerCheck:
    """One replica's canary."""

    def __init__(self, options: CanaryOptions, replica: Replica, found: Found) -> None:
        self._options, self._replica, self._found = options, replica, found
        self._streak = Streak()

    async def __call__(self, runtime: Runtime) -> bool:
        """Ask once. Returns whether what was heard is what is known; if not, it is asked again soon."""
        options = self._options
        outcome = self._replica.canary = await KnownAnswerProbe(options, self._replica).ask(runtime)
        times = self._streak.add(outcome)
        if outcome == "right" and times >= options.right_after:
            self._found(self._replica, EventKind.UP, CANARY)
        elif outcome == "wrong" and times >= options.wrong_after:
            self._found(self._replica, EventKind.CORRUPT, CANARY)
        elif outcome == "silent" and times >= options.down_after:
            self._found(self._replica, EventKind.DOWN, CANARY)
        replica = self._replica
        known = "wrong" if replica.corrupt else "silent" if CANARY in replica.down else "right"
        return outcome in (known, "unclear")
