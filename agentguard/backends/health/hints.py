"""What several proxies tell each other of replicas: hints, to be taken as such.

A machine that finds a breaker open or a replica down says so; the others leave the replica alone for a while
without first burning requests of their own on it. A hint is never more than that: it lapses by itself, and
where too few replicas would be left, it is not heeded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from agentguard.resilience import CircuitState, Clock, EventKind, ResilienceEvent

if TYPE_CHECKING:
    from agentguard.backends.load_balancer import LoadBalancer


MAX_HINT_S = 30.0
"""How long a hint holds at most, whatever it says."""

ReplicaProblem = Literal["open", "ejected", "down", "corrupt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """Trouble with a replica, as one machine sees it.

    Attributes:
        replica: its name; machines that share hints share a configuration.
        problem: what it is; None if it is over.
        duration_s: how long it will last, counted from when the hint is received.
    """

    replica: str
    problem: ReplicaProblem | None
    duration_s: float = 0.0


class HintChannel(Protocol):
    """Carries hints between machines."""

    def publish(self, hint: Hint) -> None:
        """Tell the others. Never waits and never raises; what can't be told is dropped."""
        ...

    def subscribe(self, receive: Callable[[Hint], None]) -> None:
        """Call back, in the event loop's thread, with each hint of another machine."""
        ...


_PROBLEM_KINDS: dict[EventKind, ReplicaProblem] = {
    EventKind.EJECT: "ejected",
    EventKind.DOWN: "down",
    EventKind.CORRUPT: "corrupt",
}
_RECOVERY_KINDS = frozenset({EventKind.READMIT, EventKind.UP})


class HintBridge:
    """Publishes this machine's troubles, and has the choice heed those of others."""

    def __init__(self, hints: HintChannel) -> None:
        self._hints = hints

    def observe(self, event: ResilienceEvent) -> None:
        """An observer of the pool's events."""
        if not event.target:
            return
        if event.kind is EventKind.BREAKER:
            trouble: ReplicaProblem | None = "open" if event.reason == CircuitState.OPEN else None
            if event.reason == CircuitState.HALF_OPEN:
                return  # nothing is known yet
        elif event.kind in _PROBLEM_KINDS:
            trouble = _PROBLEM_KINDS[event.kind]
        elif event.kind in _RECOVERY_KINDS:
            trouble = None
        else:
            return
        seconds = 0.0 if trouble is None else min(event.seconds or MAX_HINT_S, MAX_HINT_S)
        self._hints.publish(Hint(replica=event.target, problem=trouble, duration_s=seconds))

    def subscribe(self, load_balancer: LoadBalancer, clock: Clock) -> None:
        """Have the choice heed what comes."""

        def receive(hint: Hint) -> None:
            replica = load_balancer.replicas.get(hint.replica)
            if replica is not None:
                seconds = 0.0 if hint.problem is None else min(max(0.0, hint.duration_s), MAX_HINT_S)
                replica.hinted_until = clock.now() + seconds
                load_balancer.invalidate()

        self._hints.subscribe(receive)
