"""Context of one request in a pool."""

from __future__ import annotations

from agentguard.backends.base import BackendRequest
from agentguard.errors import BackendError
from agentguard.resilience import RequestPriority


class NoReplica(BackendError):
    """No replica serves the requested model and API; the request was not sent.

    Attributes:
        is_drained: True if such replicas exist but all are draining.
    """

    code = "no_replica"

    def __init__(self, *, is_drained: bool = False) -> None:
        self.is_drained = is_drained
        reason = "every replica that serves this is drained"
        if not is_drained:
            reason = "no replica serves this model over this API"
        super().__init__(reason, status=404, stage="unsent")


class AttemptContext:
    """Context of one request in the pool, with the results of its attempts."""

    __slots__ = (
        "attempts",
        "idempotent",
        "is_hedged",
        "is_panic",
        "is_resumption",
        "priority",
        "request",
        "running_count",
    )

    def __init__(self, request: BackendRequest, *, is_resumption: bool = False) -> None:
        self.request = request
        self.idempotent: bool = request.idempotent
        self.priority: RequestPriority = request.priority
        self.is_resumption = is_resumption  # requires a resumable replica
        self.attempts = self.running_count = 0
        self.is_hedged = self.is_panic = False

    def build_notes(self) -> tuple[tuple[str, str], ...]:
        """Return the notes on the attempts; empty after a single ordinary attempt."""
        notes: tuple[tuple[str, str], ...] = ()
        if self.attempts > 1:
            notes = (("attempts", str(self.attempts)), ("tried", ",".join(self.request.tried_replicas)))
        if self.is_hedged:
            notes = (*notes, ("hedged", "1"))
        return (*notes, ("panic", "1")) if self.is_panic else notes
