"""Supervisor of a model server: start, health checks, restart and drain.

Two health checks (Wang 2024): a heartbeat shows that the process answers; a known-answer probe shows that its
answers are right.

- A busy server is alive: an unanswered check is ignored if the counters of its engine have grown within
  ``stall_timeout_s``.
- A server that fails either check is *suspect*.
- After ``failure_threshold`` consecutive failures the supervisor starts the server again, after exponential
  backoff. A server with a heartbeat first completes its running requests; the supervisor kills any other
  server.
- After ``max_restarts`` restarts it gives up. It gives up at once if the server refuses its arguments, or
  ends twice with the same error before it was ever ready. The reason contains the error and the end of the
  log.
"""

from __future__ import annotations

import math
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from agentguard.errors import JudgeError
from agentguard.judge.vllm.command import SHUTDOWN_TIMEOUT_S
from agentguard.judge.vllm.known_answer_probe import ProbeResult
from agentguard.judge.vllm.status_server import ServerPhase, ServerStatus
from agentguard.resilience.retry import Backoff
from agentguard.supervision.restart_policy import RestartPolicy

_BUSY: Final = "busy"
_NO_HEARTBEAT: Final = "no heartbeat"
_USAGE_ERROR_STATUS: Final = 2
_ERROR_LOG_BYTES: Final = 200_000


class ServedProcess(Protocol):
    """Server process; `agentguard.supervision.process.ChildProcess` is one."""

    @property
    def is_alive(self) -> bool:
        """True if the process runs."""
        ...

    @property
    def pid(self) -> int | None:
        """Process id; None unless the process runs."""
        ...

    def start(self) -> None:
        """Start the process. Raises OSError if the program cannot be run."""
        ...

    def stop(self, timeout_s: float) -> bool:
        """Request the exit, wait at most ``timeout_s`` seconds, then kill the whole process group."""
        ...

    def kill(self) -> None:
        """Kill the whole process group."""
        ...

    @property
    def exit_status(self) -> int | None:
        """Exit status of the last run; None while it runs."""
        ...

    def read_log_tail(self, max_bytes: int = 3_000) -> str:
        """Return the end of its log."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """Health check and restart settings.

    Attributes:
        start_timeout_s: time until the first answer; loading a large model takes minutes.
        heartbeat_interval_s: time between heartbeats.
        probe_interval_s: time between known-answer probes; the first one runs before the server is ready.
        failure_threshold: consecutive failed checks before a restart.
        stall_timeout_s: time without growing counters after which a busy server counts as stalled; one step
            of its engine may take longer than a heartbeat.
        max_restarts: restarts before the supervisor gives up.
        restart_reset_s: time in service after which the restart count is reset.
        backoff: delays between starts.
    """

    start_timeout_s: float = 600.0
    heartbeat_interval_s: float = 5.0
    probe_interval_s: float = 60.0
    failure_threshold: int = 2
    stall_timeout_s: float = 30.0
    max_restarts: int = 5
    restart_reset_s: float = 600.0
    backoff: Backoff = field(default_factory=lambda: Backoff(initial_delay_s=1.0, max_delay_s=60.0))


class VllmSupervisor:
    """Supervisor of one server.

    Args:
        process: the server process.
        status: initial status, with the address and the model.
        heartbeat: returns whether the server answers.
        probe: runs the known-answer probe.
        read_progress: returns a number that grows while the engine works; None if it is unknown.
        options: health check and restart settings.
        now: monotonic clock, in seconds.
    """

    def __init__(
        self,
        process: ServedProcess,
        status: ServerStatus,
        *,
        heartbeat: Callable[[], bool],
        probe: Callable[[], ProbeResult],
        read_progress: Callable[[], float | None] = lambda: None,
        options: WatchOptions | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.process, self.options = process, options or WatchOptions()
        self._status, self._now = status, now
        self._on_status: Callable[[ServerStatus], None] | None = None
        self._heartbeat, self._probe, self._read_progress = heartbeat, probe, read_progress
        rng = random.Random()  # noqa: S311  (jitter, not a secret)
        self._restart_policy = RestartPolicy(
            compute_delay=lambda failures: self.options.backoff.sample_delay(failures, rng),
            healthy_uptime_s=self.options.restart_reset_s,
            max_restarts=self.options.max_restarts,
        )
        self._restart_delay_s = 0.0
        self._stop_requested = threading.Event()
        self._reference: ProbeResult | None = None
        self._started_at = self._ready_at = self._healthy_at = self._probed_at = 0.0
        self._failures = 0
        self._progress: float | None = None
        self._progressed_at = -math.inf
        self._start_error = ""

    @property
    def status(self) -> ServerStatus:
        """The current status of the server."""
        return self._status

    def set_status_callback(self, on_status: Callable[[ServerStatus], None]) -> None:
        """Call ``on_status`` at every later change of the status."""
        self._on_status = on_status

    def request_stop(self) -> None:
        """Drain the server and let `run` return; safe in a signal handler."""
        self._stop_requested.set()

    def run(self, wait: Callable[[float], bool] | None = None) -> ServerStatus:
        """Serve until `request_stop` is called or the supervisor gives up.

        Args:
            wait: waits the given number of seconds; returns whether a stop was requested meanwhile.

        Returns:
            The last status: stopped, or given up with the reason.
        """
        pause = wait or self._stop_requested.wait
        try:
            self._start()
            while not pause(self._compute_next_delay_s()):
                if not self._check():
                    return self._status
        finally:
            self._drain()
        return self._status

    def _compute_next_delay_s(self) -> float:
        if self._status.phase is ServerPhase.WAITING:
            return self._restart_delay_s
        if self._status.phase is ServerPhase.STARTING:
            return min(self.options.heartbeat_interval_s, 0.5)
        return self.options.heartbeat_interval_s

    def _start(self) -> None:
        self._set_phase(ServerPhase.STARTING, pid=None)
        self._started_at, self._failures = self._now(), 0
        self._ready_at = self._healthy_at = self._started_at
        try:
            self.process.start()
        except OSError as error:
            raise JudgeError(f"the server cannot be started: {error.strerror or error}") from None
        self._set_phase(ServerPhase.STARTING, pid=self.process.pid)

    def _check(self) -> bool:
        """Check the server once; return False if the supervisor gives up."""
        if self._status.phase is ServerPhase.WAITING:
            self._start()
            return True
        if not self.process.is_alive:
            return self._handle_exit()
        if self._status.phase is ServerPhase.STARTING:
            return self._check_start()
        problem, is_conclusive = self._find_problem()
        self._update_progress()
        is_busy = self._now() - self._progressed_at < self.options.stall_timeout_s
        if problem is None or (is_busy and not is_conclusive):
            self._failures, self._healthy_at = 0, self._now()
            self._mark_healthy("" if problem is None else f"{_BUSY}: {problem}")
            return True
        self._failures += 1
        if self._failures >= self.options.failure_threshold:
            return self._restart(problem)
        self._probed_at = 0.0  # probe again at the next check
        self._set_phase(ServerPhase.SUSPECT, reason=problem)
        return True

    def _update_progress(self) -> None:
        """Read the counters; without an answer, the previous ones stay valid."""
        progress, before = self._read_progress(), self._progress
        if progress is None:
            return
        self._progress = progress
        if before is not None and progress > before:
            self._progressed_at = self._now()

    def _mark_healthy(self, reason: str) -> None:
        """Set the phase to ready if the server was suspect, or if its busy reason has changed."""
        was_busy = self._status.reason.startswith(_BUSY)
        if self._status.phase is ServerPhase.SUSPECT or (
            (reason or was_busy) and reason != self._status.reason
        ):
            self._set_phase(ServerPhase.READY, reason=reason)

    def _handle_exit(self) -> bool:
        """Restart an ended server; return False if another start would end in the same way."""
        error = find_log_error(self.process.read_log_tail(_ERROR_LOG_BYTES))
        if self._reference is None:
            is_repeated = bool(error) and error == self._start_error
            self._start_error = error
            if is_repeated or self.process.exit_status == _USAGE_ERROR_STATUS:
                return self._give_up("the server cannot start")
        return self._restart("the process ended")

    def _check_start(self) -> bool:
        cause = ""
        if self._heartbeat():
            probe = self._probe()
            if probe.fault is None:
                return self._accept_server(probe)
            cause = f"; the known-answer probe was not answered: {probe.fault}"
        if self._now() - self._started_at > self.options.start_timeout_s:
            return self._restart(f"no answer within {self.options.start_timeout_s:g} s of its start{cause}")
        return True

    def _accept_server(self, result: ProbeResult) -> bool:
        """Mark a new server ready, unless its probe answers differ from those of its predecessor."""
        if self._reference is not None and result.has_drifted(self._reference):
            return self._restart("its answers differ from those after its start")
        self._reference = self._reference or result
        self._ready_at = self._healthy_at = self._probed_at = self._now()
        self._progress, self._progressed_at = self._read_progress(), -math.inf
        self._set_phase(ServerPhase.READY, reason=self._status.reason, probe=dict(result.as_dict()))
        return True

    def _find_problem(self) -> tuple[str | None, bool]:
        """Return the problem, and whether it shows a fault even if the server is busy."""
        if not self._heartbeat():
            return _NO_HEARTBEAT, False
        if self._now() - self._probed_at < self.options.probe_interval_s:
            return None, False
        probe = self._probe()
        self._probed_at = self._now()
        self._status = replace(self._status, probe=dict(probe.as_dict()))
        if probe.fault is not None:
            return f"the known-answer probe was not answered: {probe.fault}", False
        if self._reference is not None and probe.has_drifted(self._reference):
            return "its answers differ from those after its start", True
        return None, False

    def _restart(self, reason: str) -> bool:
        if reason == _NO_HEARTBEAT:
            self.process.kill()
        else:
            self._drain_process()
        self._restart_delay_s = self._restart_policy.record_exit(self._healthy_at - self._ready_at)
        if self._restart_policy.is_exhausted:
            return self._give_up(reason)
        self._set_phase(ServerPhase.WAITING, pid=None, reason=reason, restarts=self._status.restarts + 1)
        return True

    def _give_up(self, reason: str) -> bool:
        self.process.kill()
        error = find_log_error(self.process.read_log_tail(_ERROR_LOG_BYTES))
        parts = [reason, *([error] if error else []), f"the end of its log:\n{self.process.read_log_tail()}"]
        self._set_phase(ServerPhase.GIVEN_UP, pid=None, reason="; ".join(parts))
        return False

    def _drain_process(self) -> None:
        """Send SIGTERM, wait for running requests, then kill the process group."""
        if self.process.is_alive:
            self._set_phase(ServerPhase.DRAINING)
        self.process.stop(SHUTDOWN_TIMEOUT_S + 5)

    def _drain(self) -> None:
        self._drain_process()
        if self._status.phase is not ServerPhase.GIVEN_UP:
            self._set_phase(ServerPhase.STOPPED, pid=None)

    def _set_phase(self, phase: ServerPhase, **changes: object) -> None:
        self._status = replace(self._status, phase=phase, since=time.time(), **changes)  # type: ignore[arg-type]
        if self._on_status is not None:
            self._on_status(self._status)


_ERROR: Final = re.compile(r"(?:\b[A-Z]\w*(?:Error|Exception)|\berror):\s+\S.*")
_HARMLESS_LINE: Final = re.compile(r"^(?:\([^)]*\) )?(?:DEBUG|INFO|WARNING)\b.*$", re.MULTILINE)
"""Line below the level ERROR; a warning can name an error that has not happened."""

_LINE_PREFIX: Final = re.compile(r"^\([^)]*\) (?:ERROR \S+ \S+ \S+\] ?)?", re.MULTILINE)
"""Process name, and level, time and place of an error."""

_CONSEQUENCES: Final = ("Engine core initialization failed", "EngineCore encountered an issue")
"""Errors of the API server, which only report that its engine has failed."""

_MAX_CHARACTERS: Final = 600


def find_log_error(log: str) -> str:
    """Return the last error in a log that is not the consequence of another; empty without an error.

    It is the text after process name, level and time, e.g. ``ValueError: ...`` or vLLM's own message for an
    unknown argument, ``error: unrecognized arguments: --typo``. A message that begins on the next line is
    included.
    """
    text = _LINE_PREFIX.sub("", _HARMLESS_LINE.sub("", log))
    errors = [" ".join(error.split()) for error in _ERROR.findall(text)]
    causes = [error for error in errors if not any(phrase in error for phrase in _CONSEQUENCES)]
    return causes[-1][:_MAX_CHARACTERS] if causes else ""
