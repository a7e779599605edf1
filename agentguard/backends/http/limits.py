"""How much of anything a client of ours takes, holds and waits for; every bound has a number here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from agentguard.resilience.options import SECONDS, StrategyOptions, check

_BYTES = (1024, 1 << 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits(StrategyOptions):
    """Bounds of one endpoint's client.

    Attributes:
        connections: most connections at once; a connection carries one request at a time.
        idle: most of them that are kept while they carry none.
        idle_s: how long one is kept. Servers close theirs, too, and a request that meets a closing
            connection fails: so less than uvicorn's 5 s, and less than a server's ``Keep-Alive: timeout``.
        waiting: most requests that wait for a connection; further ones fail at once.
        wait_s: longest wait for one, within the deadline.
        connect_s: longest time to find the address, connect and agree on TLS, within the deadline.
        head_bytes: most bytes of an answer's head, names and values together.
        head_fields: most fields in it.
        body_bytes: most bytes of a whole answer, decoded or not.
        error_bytes: most bytes of an answer with status 400 or more that are handed on.
        event_bytes: most bytes of one server-sent event.
        ahead_bytes: how much of a stream is read ahead of a slow reader, up to one read more.
    """

    name: ClassVar[str] = "http"

    connections: int = 1000
    idle: int = 256
    idle_s: float = 4.0
    waiting: int = 1000
    wait_s: float = 10.0
    connect_s: float = 5.0
    head_bytes: int = 65_536
    head_fields: int = 200
    body_bytes: int = 64 << 20
    error_bytes: int = 1 << 20
    event_bytes: int = 8 << 20
    ahead_bytes: int = 256 << 10

    def __post_init__(self) -> None:
        check(
            self,
            connections=(1, 100_000),
            idle=(0, 100_000),
            idle_s=SECONDS,
            waiting=(0, 1_000_000),
            wait_s=SECONDS,
            connect_s=SECONDS,
            head_bytes=_BYTES,
            head_fields=(1, 10_000),
            body_bytes=_BYTES,
            error_bytes=_BYTES,
            event_bytes=_BYTES,
            ahead_bytes=_BYTES,
        )
