"""Keeps a server up: waits until it answers, watches it, starts it again, drains it.

Classical watching (Wang 2024): a heartbeat that shows that the process answers, and a canary that shows that
its answers are right. A server that misses either is *suspect*; one that misses it again is ended as a whole
group and started anew, after a wait that grows with each try. One that keeps dying is given up, with the end
of its log as the reason: a crash loop on a GPU helps nobody.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from agentguard.errors import JudgeError
from agentguard.judge.serve.canary import Canary
from agentguard.judge.serve.command import DRAIN_S
from agentguard.judge.serve.state import Phase, State
from agentguard.resilience.backoff import Backoff


class Served(Protocol):
    """A server process; `agentguard.judge.serve.process.ServerProcess` is one."""

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        ...

    @property
    def pid(self) -> int | None:
        """Its process id, while it runs."""
        ...

    def start(self) -> None:
        """Start it. Raises OSError if the program cannot be run."""
        ...

    def ask_to_end(self) -> None:
        """Let it finish what it has begun, and end."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within so many seconds."""
        ...

    def kill(self) -> None:
        """End all of it at once."""
        ...

    def tail(self) -> str:
        """The end of its log."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """How a server is watched.

    Attributes:
        start_s: how long it may take to answer first; loading a large model takes minutes.
        heartbeat_s: between heartbeats.
        canary_s: between canaries; the first is asked before a server counts as ready.
        misses: how often in a row it may miss before it is started again.
        restarts: how often it is started again before it is given up; a server that was ready for
            ``steady_s`` has a clean slate.
        steady_s: see ``restarts``.
        backoff: waits between starts.
    """

    start_s: float = 600.0
    heartbeat_s: float = 5.0
    canary_s: float = 60.0
    misses: int = 2
    restarts: int = 5
    steady_s: float = 600.0
    backoff: Backoff = field(default_factory=lambda: Backoff(base_s=1.0, cap_s=60.0))


class Supervisor:
    """Watches one server.

    Args:
        served: the process.
        state: what is known of it at first: its address and model.
        heartbeat: whether it answers.
        canary: asks it the questions whose answers are known.
        options: how it is watched.
        now: monotonic seconds; a parameter, so that tests need not wait.
    """

    def __init__(
        self,
        served: Served,
        state: State,
        *,
        heartbeat: Callable[[], bool],
        canary: Callable[[], Canary],
        options: WatchOptions | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.served, self.options = served, options or WatchOptions()
        self._state, self._now = state, now
        self._told: Callable[[State], None] | None = None
        self._heartbeat, self._canary = heartbeat, canary
        self._rng = random.Random()  # noqa: S311  (jitter, not a secret)
        self._ending = threading.Event()
        self._first: Canary | None = None
        self._began = self._ready_at = self._canary_at = 0.0
        self._missed = self._failed = 0

    @property
    def state(self) -> State:
        """What is known of the server."""
        return self._state

    def tell(self, told: Callable[[State], None]) -> None:
        """Call ``told`` at every change of state from now on."""
        self._told = told

    def end(self) -> None:
        """Drain the server and let `run` return; safe in a signal handler."""
        self._ending.set()

    def run(self, wait: Callable[[float], bool] | None = None) -> State:
        """Serve until `end` is called, or the server is given up.

        Args:
            wait: waits so many seconds, and tells whether the end was asked for meanwhile.

        Returns:
            The last state: stopped, or given up with the reason.
        """
        pause = wait or self._ending.wait
        try:
            self._start()
            while not pause(self._until_next()):
                if not self._look():
                    return self._state
        finally:
            self._drain()
        return self._state

    def _until_next(self) -> float:
        return min(self.options.heartbeat_s, 0.5) if self._state.phase is Phase.STARTING else self._wait_s

    @property
    def _wait_s(self) -> float:
        if self._state.phase is Phase.WAITING:
            return self.options.backoff.wait(max(1, self._failed), self._rng)
        return self.options.heartbeat_s

    def _start(self) -> None:
        self._enter(Phase.STARTING, pid=None)
        self._began, self._missed = self._now(), 0
        try:
            self.served.start()
        except OSError as error:
            raise JudgeError(f"the server cannot be started: {error.strerror or error}") from None
        self._enter(Phase.STARTING, pid=self.served.pid)

    def _look(self) -> bool:
        """One look at the server; False if it is given up."""
        if self._state.phase is Phase.WAITING:
            self._start()
            return True
        if not self.served.alive:
            return self._again("the process ended")
        if self._state.phase is Phase.STARTING:
            return self._first_answer()
        trouble = self._trouble()
        if trouble is None:
            self._missed = 0
            if self._now() - self._ready_at >= self.options.steady_s:
                self._failed = 0
            if self._state.phase is Phase.SUSPECT:
                self._enter(Phase.READY, reason="")
            return True
        self._missed += 1
        if self._missed >= self.options.misses:
            return self._again(trouble)
        self._canary_at = 0.0  # the next look asks again at once
        self._enter(Phase.SUSPECT, reason=trouble)
        return True

    def _first_answer(self) -> bool:
        why = ""
        if self._heartbeat():
            canary = self._canary()
            if canary.fault is None:
                return self._accept(canary)
            why = f"; the canary was not answered: {canary.fault}"
        if self._now() - self._began > self.options.start_s:
            return self._again(f"no answer within {self.options.start_s:g} s of its start{why}")
        return True

    def _accept(self, canary: Canary) -> bool:
        """Take a new server for ready, unless it answers otherwise than the one before it did."""
        if self._first is not None and canary.strays(self._first):
            return self._again("its answers are not those it gave when it was new")
        self._first = self._first or canary
        self._ready_at = self._canary_at = self._now()
        self._enter(Phase.READY, reason=self._state.reason, canary=dict(canary.as_dict()))
        return True

    def _trouble(self) -> str | None:
        if not self._heartbeat():
            return "no heartbeat"
        if self._now() - self._canary_at < self.options.canary_s:
            return None
        canary = self._canary()
        self._canary_at = self._now()
        self._state = replace(self._state, canary=dict(canary.as_dict()))
        if canary.fault is not None:
            return f"the canary was not answered: {canary.fault}"
        if self._first is not None and canary.strays(self._first):
            return "its answers are not those it gave when it was new"
        return None

    def _again(self, reason: str) -> bool:
        self.served.kill()
        self._failed += 1
        if self._failed > self.options.restarts:
            self._enter(
                Phase.GIVEN_UP, pid=None, reason=f"{reason}; the end of its log:\n{self.served.tail()}"
            )
            return False
        self._enter(Phase.WAITING, pid=None, reason=reason, restarts=self._state.restarts + 1)
        return True

    def _drain(self) -> None:
        """SIGTERM, time to finish what was begun, then the group's end."""
        if self.served.alive:
            self._enter(Phase.DRAINING)
            self.served.ask_to_end()
            self.served.wait(DRAIN_S + 5)
        self.served.kill()
        if self._state.phase is not Phase.GIVEN_UP:
            self._enter(Phase.STOPPED, pid=None)

    def _enter(self, phase: Phase, **changes: object) -> None:
        self._state = replace(self._state, phase=phase, since=time.time(), **changes)  # type: ignore[arg-type]
        if self._told is not None:
            self._told(self._state)
