"""Limits of the HTTP client on sizes, waits and connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from agentguard.resilience.options import SECONDS, StrategyOptions, check_ranges

_BYTES_RANGE = (1024, 1 << 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits(StrategyOptions):
    """Limits of one endpoint's client.

    Attributes:
        max_connections: maximum number of connections; a connection carries one request at a time.
        max_idle_connections: maximum number of idle connections that are kept.
        keepalive_timeout_s: idle time after which a connection is closed. Servers close idle connections too,
            and a request on a closing connection fails. So it is less than uvicorn's 5 s and than a server's
            ``Keep-Alive: timeout``.
        max_waiting: maximum number of requests that wait for a connection; further ones fail at once.
        pool_timeout_s: maximum wait for a connection, within the deadline.
        connect_timeout_s: time limit for name resolution, connection and TLS handshake, within the deadline.
        max_header_bytes: maximum size of a response's head, names and values together.
        max_headers: maximum number of header fields.
        max_body_bytes: maximum size of a complete response, encoded or decoded.
        max_error_bytes: maximum size of a forwarded response with status 400 or more.
        max_event_bytes: maximum size of one server-sent event.
        max_buffered_bytes: maximum data of a stream that is buffered for a slow reader, plus one read.
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
