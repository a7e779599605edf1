"""The faults, as data: frozen, comparable, printable, each with what it does on the wire.

A fault is what happens to one request. `Ok` is one of them: the request is answered.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from agentguard.errors import ConfigError

FOREVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """What happens to one request.

    Attributes:
        after_s: seconds before it begins, counted from the end of the request.
    """

    delay_s: float = 0.0

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, int | float) and not value >= 0:
                raise ConfigError(f"{type(self).__name__}.{one.name} must be 0 or more, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ok(InjectedFault):
    """The right answer, whole.

    Attributes:
        first_s: seconds from the head to the first token.
        gap_s: seconds before each token after it.
    """

    first_token_delay_s: float = 0.0
    token_interval_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse(InjectedFault):
    """Connections are refused. It concerns a whole backend: no request is there yet when it happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset(InjectedFault):
    """The connection is reset (TCP RST, by SO_LINGER 0).

    Attributes:
        tokens: after so many of a stream, or half of another answer's body; None is before the head.
    """

    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate(InjectedFault):
    """The answer ends too early, without a reset: the way that is taken for a success.

    Attributes:
        tokens: that are sent of a stream; of another answer it is half of the body.
        framing: ``ended`` ends the chunked body as if it were whole; ``chunked`` and ``length`` close the
            connection inside the body; ``close`` sends a body that is as long as the connection.
    """

    tokens: int = 3
    framing: Literal["ended", "chunked", "length", "close"] = "chunked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang(InjectedFault):
    """The request is read and nothing ever comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall(InjectedFault):
    """The head and some tokens come, or half of a body, then nothing, on an open connection.

    Attributes:
        tokens: that are sent.
        seconds: until the rest comes after all.
    """

    tokens: int = 3
    duration_s: float = FOREVER


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatOnly(InjectedFault):
    """Some tokens, then heartbeats alone, which carry nothing and keep a read timeout from ending it.

    Attributes:
        tokens: that are sent.
        every_s: seconds between two heartbeats.
        kind: a comment of the event stream, an event of the API that carries nothing, or each in turn.
    """

    tokens: int = 3
    interval_s: float = 0.05
    kind: Literal["comment", "event", "both"] = "comment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trickle(InjectedFault):
    """The right answer, so few bytes at a time that each read brings something (a slow-loris server).

    Attributes:
        size: bytes at a time.
        every_s: seconds between them.
        part: ``head`` begins with the status line; ``body`` sends the head at once.
    """

    size: int = 1
    interval_s: float = 0.05
    part: Literal["head", "body"] = "head"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusFault(InjectedFault):
    """An error of the API, with a body in its form.

    Attributes:
        status: of HTTP, 200 to 599.
        retry_after: value of ``Retry-After`` as it is sent: seconds, a date, nonsense; None leaves it out.
        headers: more of them.
    """

    status: int = 503
    retry_after: str | None = None
    headers: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        InjectedFault.__post_init__(self)
        if not 200 <= self.status <= 599:
            raise ConfigError(f"Status.status must be from 200 to 599, not {self.status}")


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidAnswer(InjectedFault):
    """Status 200 and an answer that is none.

    Attributes:
        kind: ``json`` is cut inside; ``event`` is a bad one in a stream; ``html`` a page of a proxy between;
            ``empty`` is of the API, but has no choice, output or content; ``nothing`` is a body of 0 bytes;
            ``utf8`` holds bytes that are no text; ``list`` is JSON, but no object.
        tokens: that come before it in a stream.
    """

    kind: Literal["json", "event", "html", "empty", "nothing", "utf8", "list"] = "json"
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrupt(InjectedFault):
    """A whole, valid answer that is wrong, which no parser can see.

    Attributes:
        kind: ``flipped`` changes the text, or the arguments of a tool call; ``foreign`` is the answer to
            another request.
    """

    kind: Literal["flipped", "foreign"] = "flipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Huge(InjectedFault):
    """Too much of something.

    Attributes:
        part: the head, the body, or one event of a stream.
        size: bytes.
    """

    part: Literal["head", "body", "event"] = "body"
    size: int = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEvent(InjectedFault):
    """An error inside a stream that has begun with status 200, as vLLM and others send it.

    Attributes:
        tokens: that come before it.
        done: whether the protocol's last event follows all the same.
    """

    tokens: int = 3
    include_done: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw(InjectedFault):
    """Any bytes as the whole answer, head and all: bad framing, two lengths, a second answer unasked.

    Attributes:
        data: what is sent.
        then: what becomes of the connection.
    """

    data: bytes = b""
    connection_action: Literal["close", "reset", "hold", "keep"] = "close"
