"""Health hints: problems of replicas that several proxies report to each other.

A machine publishes a hint if a circuit breaker opens, or if a replica is down, corrupt or ejected. The other
machines avoid the replica until the hint expires. They ignore it if too few replicas would remain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from agentguard.resilience import CircuitState, Clock, EventKind, ResilienceEvent

if TYPE_CHECKING:
    from agentguard.backends.load_balancer import LoadBalancer


MAX_HINT_S = 30.0
"""Upper bound on the duration of a hint."""

ReplicaProblem = Literal["open", "ejected", "down", "corrupt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """Problem of a replica that one machine observed.

    Attributes:
        replica: name of the replica; machines that share hints share a configuration.
        problem: kind of the problem; None if the problem has ended.
        duration_s: expected duration, counted from the receipt of the hint.
    """

    replica: str
    problem: ReplicaProblem | None
    duration_s: float = 0.0


class HintChannel(Protocol):
    """Channel that carries hints between machines."""

    def publish(self, hint: Hint) -> None:
        """Send a hint to the other machines. Never waits or raises; an undeliverable hint is dropped."""
        ...

    def subscribe(self, receive: Callable[[Hint], None]) -> None:
        """Pass each hint of another machine to ``receive``, in the thread of the event loop."""
        ...


_PROBLEM_KINDS: dict[EventKind, ReplicaProblem] = {
    EventKind.EJECT: "ejected",
    EventKind.DOWN: "down",
    EventKind.CORRUPT: "corrupt",
}
_RECOVERY_KINDS = frozenset({EventKind.READMIT, EventKind.UP})


class HintBridge:
    """Connection of a load balancer to a channel: it publishes local problems, and applies received hints."""

    def __init__(self, hints: HintChannel) -> None:
        self._hints = hints

    def observe(self, event: ResilienceEvent) -> None:
        """Publish a hint for an event of the pool."""
        if not event.target:
            return
        if event.kind is EventKind.BREAKER:
            problem: ReplicaProblem | None = "open" if event.reason == CircuitState.OPEN else None
            if event.reason == CircuitState.HALF_OPEN:
                return  # the probing call has no result yet
        elif event.kind in _PROBLEM_KINDS:
            problem = _PROBLEM_KINDS[event.kind]
        elif event.kind in _RECOVERY_KINDS:
            problem = None
        else:
            return
        seconds = 0.0 if problem is None else min(event.seconds or MAX_HINT_S, MAX_HINT_S)
        self._hints.publish(Hint(replica=event.target, problem=problem, duration_s=seconds))

    def subscribe(self, load_balancer: LoadBalancer, clock: Clock) -> None:
        """Apply received hints to the load balancer."""

        def receive(hint: Hint) -> None:
            replica = load_balancer.replicas.get(hint.replica)
            if replica is not None:
                seconds = 0.0 if hint.problem is None else min(max(0.0, hint.duration_s), MAX_HINT_S)
                replica.hinted_until = clock.now() + seconds
                load_balancer.invalidate()

        self._hints.subscribe(receive)
