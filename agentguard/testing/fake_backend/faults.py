"""Faults as data: frozen and comparable, each with its effect on the connection.

A fault decides the response to one request. `Ok` is the fault without an effect: the expected response.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from agentguard.errors import ConfigError

FOREVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """Base class of the faults of one request.

    Attributes:
        delay_s: seconds from the end of the request to the beginning of the fault.

    Raises:
        ConfigError: a number is negative or NaN.
    """

    delay_s: float = 0.0

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, int | float) and not value >= 0:
                raise ConfigError(f"{type(self).__name__}.{one.name} must be 0 or more, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ok(InjectedFault):
    """Expected response, complete.

    Attributes:
        first_token_delay_s: seconds from the head to the first token.
        token_interval_s: seconds before each later token.
    """

    first_token_delay_s: float = 0.0
    token_interval_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse(InjectedFault):
    """Refused connections; the fault applies to a whole backend, because it precedes any request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset(InjectedFault):
    """Connection reset (TCP RST, by SO_LINGER 0).

    Attributes:
        tokens: number of tokens before it in a stream; half of the body otherwise; None resets before the
            head.
    """

    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate(InjectedFault):
    """Response that ends too early, without a reset, so that a client may take it for complete.

    Attributes:
        tokens: number of tokens sent in a stream; without a stream, half of the body is sent.
        framing: ``ended`` ends the chunked body correctly; ``chunked`` and ``length`` close the connection
            inside the body; ``close`` sends a body that is delimited by the end of the connection.
    """

    tokens: int = 3
    framing: Literal["ended", "chunked", "length", "close"] = "chunked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang(InjectedFault):
    """Request without any response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall(InjectedFault):
    """Interruption after the head and some tokens, or half of a body, on an open connection.

    Attributes:
        tokens: number of tokens sent.
        duration_s: seconds until the rest follows.
    """

    tokens: int = 3
    duration_s: float = FOREVER


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatOnly(InjectedFault):
    """Some tokens, then only heartbeats, which carry no content but prevent a read timeout.

    Attributes:
        tokens: number of tokens sent.
        interval_s: seconds between two heartbeats.
        kind: a comment of the event stream, an event of the API without content, or both alternately.
    """

    tokens: int = 3
    interval_s: float = 0.05
    kind: Literal["comment", "event", "both"] = "comment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trickle(InjectedFault):
    """Expected response, a few bytes at a time, so that every read returns data (a slow-loris server).

    Attributes:
        size: bytes at a time.
        interval_s: seconds between them.
        part: ``head`` begins with the status line; ``body`` sends the head at once.
    """

    size: int = 1
    interval_s: float = 0.05
    part: Literal["head", "body"] = "head"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusFault(InjectedFault):
    """Error status of the API, with a body in its format.

    Attributes:
        status: HTTP status, 200 to 599.
        retry_after: literal value of ``Retry-After``: seconds, a date or an invalid value; None omits it.
        headers: additional headers.
    """

    status: int = 503
    retry_after: str | None = None
    headers: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        InjectedFault.__post_init__(self)
        if not 200 <= self.status <= 599:
            raise ConfigError(f"StatusFault.status must be from 200 to 599, not {self.status}")


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidResponse(InjectedFault):
    """Status 200 with an invalid response.

    Attributes:
        kind: ``json`` is truncated JSON; ``event`` is an invalid event in a stream; ``html`` is a page of a
            proxy; ``empty`` is valid but has no choice, output or content; ``nothing`` is a body of 0 bytes;
            ``utf8`` contains bytes that are not UTF-8; ``list`` is JSON but not an object.
        tokens: number of tokens before it in a stream.
    """

    kind: Literal["json", "event", "html", "empty", "nothing", "utf8", "list"] = "json"
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrupt(InjectedFault):
    """Complete, valid response that is wrong, which no parser can detect.

    Attributes:
        kind: ``flipped`` changes the text, or the arguments of a tool call; ``foreign`` is the expected
            response to another request.
    """

    kind: Literal["flipped", "foreign"] = "flipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Huge(InjectedFault):
    """Oversized part of the response.

    Attributes:
        part: the head, the body, or one event of a stream.
        size: bytes.
    """

    part: Literal["head", "body", "event"] = "body"
    size: int = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEvent(InjectedFault):
    """Error inside a stream that has begun with status 200, as vLLM and others send it.

    Attributes:
        tokens: number of tokens before it.
        include_done: whether the final event of the protocol follows.
    """

    tokens: int = 3
    include_done: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw(InjectedFault):
    """Arbitrary bytes as the whole response, head included: bad framing, two lengths, a second response.

    Attributes:
        data: the bytes.
        connection_action: action on the connection afterwards; ``hold`` keeps it open and silent, ``keep``
            accepts another request.
    """

    data: bytes = b""
    connection_action: Literal["close", "reset", "hold", "keep"] = "close"
