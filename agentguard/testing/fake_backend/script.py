"""Scripts of the fake backend: a script is a callable that returns the fault for a request."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from agentguard.errors import ConfigError
from agentguard.testing.fake_backend.expected_response import ApiName
from agentguard.testing.fake_backend.faults import InjectedFault, Ok, Refuse

MARK_PATTERN = re.compile(rb"\[\[([A-Za-z0-9_.:/-]{1,100})\]\]")
"""Mark that selects a script, anywhere in the body of a request: ``[[name]]``."""


@dataclass(slots=True, kw_only=True)
class RecordedRequest:
    """Request as the backend received it, and its result; times are of the monotonic clock, in seconds.

    Attributes:
        number: number of the request, from 0.
        connection: number of its connection, from 0.
        received_at: time at which the request was complete.
        method, target, headers, body: the request as received; header names are in lower case.
        api: API of the path.
        stream: whether the body asks for a stream.
        key: the name in its mark ``[[name]]``; without a mark, a digest of the body.
        attempt: number of earlier requests with this key.
        fault: the fault applied to it.
        tokens: number of tokens sent in a stream.
        sent_bytes: bytes of the response that were passed to the operating system.
        answered_at: time at which the response was complete according to the fault; None if it never was.
        disconnected_at: time at which the client closed or reset the connection before that; otherwise None.
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
        """Return whether the client disconnected before the response was complete."""
        return self.disconnected_at is not None

    @property
    def is_finished(self) -> bool:
        """Return whether the response is complete or the client disconnected."""
        return self.disconnected_at is not None or self.answered_at is not None

    def get_header(self, name: str) -> str | None:
        """Return the first value of a header; None if it is missing."""
        encoded_name = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers if key == encoded_name), None)


Script: TypeAlias = Callable[[RecordedRequest], InjectedFault]


def build_script(script: Script | InjectedFault | Sequence[InjectedFault]) -> Script:
    """Return a script: one fault for every request, or several in turn, the last one repeated.

    Raises:
        ConfigError: the sequence is empty or contains a `Refuse`.
    """
    if isinstance(script, InjectedFault):
        return lambda _seen: script
    if callable(script):
        return script
    faults = _validate_faults(script)
    return lambda seen: faults[min(seen.number, len(faults) - 1)]


@dataclass(frozen=True, slots=True)
class MarkScript:
    """Script that selects faults by the mark in the request, for many cases at once.

    Attributes:
        table: faults by mark, one per attempt; the last one is repeated.
        default: fault for a request without a mark of the table.
    """

    table: Mapping[str, InjectedFault | Sequence[InjectedFault]]
    default: InjectedFault = field(default_factory=Ok)

    def __post_init__(self) -> None:
        for faults in self.table.values():
            _validate_faults([faults] if isinstance(faults, InjectedFault) else faults)

    def __call__(self, request: RecordedRequest) -> InjectedFault:
        """Return the fault for a request."""
        faults = self.table.get(request.key, self.default)
        return faults if isinstance(faults, InjectedFault) else faults[min(request.attempt, len(faults) - 1)]


@dataclass(frozen=True, slots=True)
class FaultSchedule:
    """Script that draws faults at random, reproducibly from seed, key and attempt.

    The order of the requests has no influence, so that a run with concurrent requests is reproducible.

    Attributes:
        weights: relative frequency of each fault.
        seed: seed of the draws.

    Raises:
        ConfigError: a weight is negative, all are 0, or a fault is a `Refuse`.
    """

    weights: Mapping[InjectedFault, float]
    seed: int = 0

    def __post_init__(self) -> None:
        _validate_faults(list(self.weights))
        if not all(weight >= 0 for weight in self.weights.values()) or not any(self.weights.values()):
            raise ConfigError(
                "FaultSchedule.weights: no weight may be negative, and at least one must be positive"
            )

    def __call__(self, request: RecordedRequest) -> InjectedFault:
        """Return the fault for a request."""
        chance = random.Random(f"{self.seed}/{request.key}/{request.attempt}")  # noqa: S311
        return chance.choices(list(self.weights), weights=list(self.weights.values()))[0]


def _validate_faults(faults: Sequence[InjectedFault]) -> Sequence[InjectedFault]:
    if not faults:
        raise ConfigError("a script needs at least one fault")
    if any(isinstance(fault, Refuse) for fault in faults):
        raise ConfigError(
            "Refuse applies to all connections of a backend, not to one request: give it as the whole "
            "script, or use FakeBackend.refuse_connections()"
        )
    return faults
