"""Which fault a request gets: a script is a callable that is told of the request and returns a fault."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from agentguard.errors import ConfigError
from agentguard.testing.fake_backend.expected import ApiName
from agentguard.testing.fake_backend.faults import InjectedFault, Ok, Refuse

MARK_PATTERN = re.compile(rb"\[\[([A-Za-z0-9_.:/-]{1,100})\]\]")
"""What names a script inside a request, anywhere in its body: ``[[name]]``."""


@dataclass(slots=True, kw_only=True)
class RecordedRequest:
    """One request, as the backend saw it, and what became of it. Times are of the monotonic clock.

    Attributes:
        number: of the request, counted from 0.
        connection: that it came on, counted from 0.
        at: time at which it was there, whole.
        method, target, headers, body: as they came; names of headers in lower case.
        api: that the path belongs to.
        stream: whether the body asks for a stream.
        key: the name in its mark ``[[name]]``; a digest of the body if there is none.
        attempt: how many requests with this key came before.
        fault: what it got.
        tokens: of a stream that were sent.
        sent: bytes of the answer that were handed to the system.
        answered_at: time at which the answer was over as the fault wanted it; None if it never was.
        left_at: time at which the client closed or reset the connection before that; None if it did not.
    """

    number: int
    connection: int
    received_at: float
    method: str
    target: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes = field(repr=False)
    api: ApiName
    stream: bool
    key: str
    attempt: int
    fault: InjectedFault = field(default_factory=Ok)
    tokens: int = 0
    sent_bytes: int = 0
    answered_at: float | None = None
    disconnected_at: float | None = None

    @property
    def is_cancelled(self) -> bool:
        """Whether the client left before the answer was over."""
        return self.disconnected_at is not None

    @property
    def is_finished(self) -> bool:
        """Whether nothing is done for it any more."""
        return self.disconnected_at is not None or self.answered_at is not None

    def get_header(self, name: str) -> str | None:
        """A header's value, the first of that name; None if there is none."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers if key == wanted), None)


Script: TypeAlias = Callable[[RecordedRequest], InjectedFault]


def build_script(script: Script | InjectedFault | Sequence[InjectedFault]) -> Script:
    """A script: one fault for every request, or several in turn, of which the last one stays.

    Raises:
        ConfigError: an empty sequence, or a `Refuse` in a sequence.
    """
    if isinstance(script, InjectedFault):
        return lambda _seen: script
    if callable(script):
        return script
    faults = _validate_faults(script)
    return lambda seen: faults[min(seen.number, len(faults) - 1)]


@dataclass(frozen=True, slots=True)
class MarkScript:
    """Faults by the mark in the request: many cases at once, each with its own.

    Attributes:
        table: faults by mark, those of its attempts in turn; the last one stays.
        default: for a request without a mark of the table.
    """

    table: Mapping[str, InjectedFault | Sequence[InjectedFault]]
    default: InjectedFault = field(default_factory=Ok)

    def __post_init__(self) -> None:
        for faults in self.table.values():
            _validate_faults([faults] if isinstance(faults, InjectedFault) else faults)

    def __call__(self, request: RecordedRequest) -> InjectedFault:
        """The fault of a request."""
        faults = self.table.get(request.key, self.default)
        return faults if isinstance(faults, InjectedFault) else faults[min(request.attempt, len(faults) - 1)]


@dataclass(frozen=True, slots=True)
class FaultSchedule:
    """Faults by chance, the same each time: it hangs on the seed, the request and the attempt alone.

    The order in which requests come makes no difference, so that a run with many at once can be repeated.

    Attributes:
        weights: how often each fault comes, in proportion.
        seed: of the chance.
    """

    weights: Mapping[InjectedFault, float]
    seed: int = 0

    def __post_init__(self) -> None:
        _validate_faults(list(self.weights))
        if not all(weight >= 0 for weight in self.weights.values()) or not any(self.weights.values()):
            raise ConfigError("Schedule.weights: no weight may be below 0, and one must be above it")

    def __call__(self, request: RecordedRequest) -> InjectedFault:
        """The fault of a request."""
        chance = random.Random(f"{self.seed}/{request.key}/{request.attempt}")  # noqa: S311
        return chance.choices(list(self.weights), weights=list(self.weights.values()))[0]


def _validate_faults(faults: Sequence[InjectedFault]) -> Sequence[InjectedFault]:
    if not faults:
        raise ConfigError("a script needs at least one fault")
    if any(isinstance(fault, Refuse) for fault in faults):
        raise ConfigError(
            "Refuse is no fault of one request, as no request is there yet: give it as the whole script, or "
            "use FaultBackend.refusing()"
        )
    return faults
