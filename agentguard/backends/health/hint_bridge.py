"""Between the pool's events and the hints of other machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard.backends.health.hints import LONGEST_S, Hint, Hints, Trouble
from agentguard.resilience import CircuitState, Clock, EventKind, ResilienceEvent

if TYPE_CHECKING:
    from agentguard.backends.load_balancer import LoadBalancer

_TROUBLE: dict[EventKind, Trouble] = {
    EventKind.EJECT: "ejected",
    EventKind.DOWN: "down",
    EventKind.CORRUPT: "corrupt",
}
_OVER = frozenset({EventKind.READMIT, EventKind.UP})


class HintBridge:
    """Publishes this machine's troubles, and has the choice heed those of others."""

    def __init__(self, hints: Hints) -> None:
        self._hints = hints

    def observe(self, event: ResilienceEvent) -> None:
        """An observer of the pool's events."""
        if not event.target:
            return
        if event.kind is EventKind.BREAKER:
            trouble: Trouble | None = "open" if event.reason == CircuitState.OPEN else None
            if event.reason == CircuitState.HALF_OPEN:
                return  # nothing is known yet
        elif event.kind in _TROUBLE:
            trouble = _TROUBLE[event.kind]
        elif event.kind in _OVER:
            trouble = None
        else:
            return
        seconds = 0.0 if trouble is None else min(event.seconds or LONGEST_S, LONGEST_S)
        self._hints.publish(Hint(replica=event.target, trouble=trouble, seconds=seconds))

    def subscribe(self, choice: LoadBalancer, clock: Clock) -> None:
        """Have the choice heed what comes."""

        def receive(hint: Hint) -> None:
            replica = choice.replicas.get(hint.replica)
            if replica is not None:
                seconds = 0.0 if hint.trouble is None else min(max(0.0, hint.seconds), LONGEST_S)
                replica.hinted_until = clock.now() + seconds
                choice.touch()

        self._hints.subscribe(receive)
