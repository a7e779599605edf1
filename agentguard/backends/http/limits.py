"""How much of anything a client of ours takes, holds and waits for; every bound has a number here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from agentguard.resilience.options import SECONDS, StrategyOptions, check_ranges

_BYTES_RANGE = (1024, 1 << 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits(StrategyOptions):
    """Bounds of one endpoint's client.

    Attributes:
        max_connections: most connections at once; a connection carries one request at a time.
        max_idle_connections: most of them that are kept while they carry none.
        keepalive_timeout_s: how long one is kept. Servers close theirs, too, and a request that meets a closing
            connection fails: so less than uvicorn's 5 s, and less than a server's ``Keep-Alive: timeout``.
        max_waiting: most requests that wait for a connection; further ones fail at once.
        pool_timeout_s: longest wait for one, within the deadline.
        connect_timeout_s: longest time to find the address, connect and agree on TLS, within the deadline.
        max_header_bytes: most bytes of an answer's head, names and values together.
        max_headers: most fields in it.
        max_body_bytes: most bytes of a whole answer, decoded or not.
        max_error_bytes: most bytes of an answer with status 400 or more that are handed on.
        max_event_bytes: most bytes of one server-sent event.
        max_buffered_bytes: how much of a stream is read ahead of a slow reader, up to one read more.
    """

    name: ClassVar[str] = "http"

    max_connections: int = 1000
    max_idle_connections: int = 256
    keepalive_timeout_s: float = 4.0
    max_waiting: int = 1000
    pool_timeout_s: float = 10.0
    connect_timeout_s: float = 5.0
    max_header_bytes: int = 65_536
    max_headers: int = 200
    max_body_bytes: int = 64 << 20
    max_error_bytes: int = 1 << 20
    max_event_bytes: int = 8 << 20
    max_buffered_bytes: int = 256 << 10

    def __post_init__(self) -> None:
        check_ranges(
            self,
            max_connections=(1, 100_000),
            max_idle_connections=(0, 100_000),
            keepalive_timeout_s=SECONDS,
            max_waiting=(0, 1_000_000),
            pool_timeout_s=SECONDS,
            connect_timeout_s=SECONDS,
            max_header_bytes=_BYTES_RANGE,
            max_headers=(1, 10_000),
            max_body_bytes=_BYTES_RANGE,
            max_error_bytes=_BYTES_RANGE,
            max_event_bytes=_BYTES_RANGE,
            max_buffered_bytes=_BYTES_RANGE,
        )
