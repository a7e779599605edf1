"""Limits of the HTTP client on sizes, waits and connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from agentguard.options import SECONDS, Options, option

_BYTES_RANGE = (1024, 1 << 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits(Options):
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

    max_connections: int = option(1000, bounds=(1, 100_000))
    max_idle_connections: int = option(256, bounds=(0, 100_000))
    keepalive_timeout_s: float = option(4.0, bounds=SECONDS)
    max_waiting: int = option(1000, bounds=(0, 1_000_000))
    pool_timeout_s: float = option(10.0, bounds=SECONDS)
    connect_timeout_s: float = option(5.0, bounds=SECONDS)
    max_header_bytes: int = option(65_536, bounds=_BYTES_RANGE)
    max_headers: int = option(200, bounds=(1, 10_000))
    max_body_bytes: int = option(64 << 20, bounds=_BYTES_RANGE)
    max_error_bytes: int = option(1 << 20, bounds=_BYTES_RANGE)
    max_event_bytes: int = option(8 << 20, bounds=_BYTES_RANGE)
    max_buffered_bytes: int = option(256 << 10, bounds=_BYTES_RANGE)
