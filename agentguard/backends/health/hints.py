"""What several proxies tell each other of replicas: hints, to be taken as such.

A machine that finds a breaker open or a replica down says so; the others leave the replica alone for a while
without first burning requests of their own on it. A hint is never more than that: it lapses by itself, and
where too few replicas would be left, it is not heeded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

LONGEST_S = 30.0
"""How long a hint holds at most, whatever it says."""

Trouble = Literal["open", "ejected", "down", "corrupt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """Trouble with a replica, as one machine sees it.

    Attributes:
        replica: its name; machines that share hints share a configuration.
        trouble: what it is; None if it is over.
        seconds: how long it will last, counted from when the hint is received.
    """

    replica: str
    trouble: Trouble | None
    seconds: float = 0.0


class Hints(Protocol):
    """Carries hints between machines."""

    def publish(self, hint: Hint) -> None:
        """Tell the others. Never waits and never raises; what can't be told is dropped."""
        ...

    def subscribe(self, receive: Callable[[Hint], None]) -> None:
        """Call back, in the event loop's thread, with each hint of another machine."""
        ...
