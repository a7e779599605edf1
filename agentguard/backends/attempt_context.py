"""One request on its way through a pool."""

from __future__ import annotations

from agentguard.backends.base import BackendRequest
from agentguard.errors import BackendError
from agentguard.resilience import RequestPriority


class NoReplica(BackendError):
    """No replica is there for the model and the API that were asked for; nothing was sent.

    Attributes:
        drained: whether there are such replicas, and all of them are given no requests now.
    """

    code = "no_replica"

    def __init__(self, *, drained: bool = False) -> None:
        self.drained = drained
        why = "every replica that serves this is drained"
        if not drained:
            why = "no replica serves this model over this API"
        super().__init__(why, status=404, stage="unsent")


class AttemptContext:
    """One request on its way through the pool, with what becomes of it."""

    __slots__ = ("attempts", "continues", "hedged", "idempotent", "panic", "priority", "request", "running")

    def __init__(self, request: BackendRequest, *, continues: bool = False) -> None:
        self.request = request
        self.idempotent: bool = request.idempotent
        self.priority: RequestPriority = request.priority
        self.continues = continues  # only a replica that continues answers will do
        self.attempts = self.running = 0
        self.hedged = self.panic = False

    def notes(self) -> tuple[tuple[str, str], ...]:
        """What is worth telling; empty for a request that went straight through."""
        notes: tuple[tuple[str, str], ...] = ()
        if self.attempts > 1:
            notes = (("attempts", str(self.attempts)), ("tried", ",".join(self.request.tried)))
        if self.hedged:
            notes = (*notes, ("hedged", "1"))
        return (*notes, ("panic", "1")) if self.panic else notes
