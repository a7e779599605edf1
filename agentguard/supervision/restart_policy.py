"""Restart policy of a child process: when it starts again after an exit, and when the supervisor gives up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class RestartPolicy:
    """Restart policy: delay between restarts and limit of consecutive failures of one child process.

    Attributes:
        compute_delay: delay in seconds after ``n`` consecutive failures, from 1; for example
            `agentguard.resilience.Backoff.compute_max_delay`.
        healthy_uptime_s: uptime after which an exit counts as the first failure again.
        max_restarts: consecutive restarts before the supervisor gives up; None for no limit.
        failures: number of consecutive failures.
    """

    compute_delay: Callable[[int], float]
    healthy_uptime_s: float = 10.0
    max_restarts: int | None = None
    failures: int = 0

    @property
    def is_exhausted(self) -> bool:
        """Return whether the process must not be started again."""
        return self.max_restarts is not None and self.failures > self.max_restarts

    def record_exit(self, uptime_s: float) -> float:
        """Count the end of a run of ``uptime_s`` seconds; return the delay before the next start."""
        self.failures = 1 if uptime_s >= self.healthy_uptime_s else self.failures + 1
        return self.compute_delay(self.failures)
