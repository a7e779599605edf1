"""Requests and responses of a backend: HTTP, reduced to the needs of a proxy and its strategies.

Bodies are bytes and stay unparsed; only components that must change a body parse it. Header names are in
lower case. Connection headers (RFC 9110, 7.6.1) never pass through this interface.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self

from agentguard.errors import BackendError
from agentguard.resilience.base import RequestPriority
from agentguard.resilience.deadline import Deadline

if TYPE_CHECKING:
    from agentguard.backends.http.websocket_tunnel import WebSocketTunnel
    from agentguard.model_api import ApiFormat

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(slots=True, kw_only=True)
class BackendRequest:
    """One request to a model endpoint: `agentguard.resilience.Request` with HTTP. Treat it as immutable.

    It and `Response` are not frozen: they are created for each request, and frozen classes take three times
    as long.

    Attributes:
        target: path and query below the endpoint's base URL, e.g. ``/chat/completions?x=1``.
        method: HTTP method.
        headers: headers to forward; the endpoint's key is added when the request is sent.
        body: the body in its encoded form.
        api: API format that checks the completeness of the response: its last event and its heartbeats. None
            accepts any response.
        stream: True if a stream of events is requested.
        idempotent: True if repeating the request is harmless.
        priority: priority under load shedding.
        model: requested model; empty if the body has none.
        session_id: ID of the run, for policies that route a run to one replica.
        prefix_digest: digest of the prompt's prefix, for policies that use a server's prefix cache.
        quorum_size: number of replicas that are asked concurrently and vote; 1 disables voting.
        pinned_replica: replica with the state that the request continues, such as a stored response. It is
            used while it is in the pool and available.
        tried_replicas: replicas that were already tried, in order; maintained by the pool.
        is_tunnel: True to switch the connection to WebSocket.
    """

    target: str
    method: str = "POST"
    headers: Headers = ()
    body: bytes = b""
    api: ApiFormat | None = None
    stream: bool = False
    idempotent: bool = True
    priority: RequestPriority = RequestPriority.CRITICAL
    model: str = ""
    session_id: str = ""
    prefix_digest: bytes = b""
    quorum_size: int = 1
    pinned_replica: str = ""
    tried_replicas: list[str] = field(default_factory=list, compare=False)
    is_tunnel: bool = False


@dataclass(slots=True, kw_only=True)
class Response:
    """Complete response. Treat it as immutable.

    Attributes:
        status: HTTP status.
        headers: headers as received, without connection headers.
        body: body as received.
        replica: name of the replica that responded.
        notes: notes on the attempts of the request, by name: ``("hedged", "1")``, ``("voted", "2/3")``.
        tunnel: connection that has switched to WebSocket; None for all responses but those with status 101.
    """

    status: int
    headers: Headers = ()
    body: bytes = b""
    replica: str = ""
    notes: tuple[tuple[str, str], ...] = ()
    tunnel: WebSocketTunnel | None = None


class StreamingResponse(Protocol):
    """Streamed response: iterate over it to its end, or close it.

    Each item is one or more complete server-sent events as received, or any bytes if the body is not an event
    stream. Iterating raises ResilienceError, with stage ``committed`` after the first item.
    """

    status: int
    headers: Headers
    replica: str
    notes: tuple[tuple[str, str], ...]

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> bytes: ...

    async def aclose(self) -> None:
        """Close the stream, and the connection too unless the stream is at its end."""
        ...


class UpstreamError(BackendError):
    """Error response of the endpoint; it can be forwarded unchanged.

    Attributes:
        response: the response, with a status of 400 or more.
    """

    code = "refused"

    def __init__(self, response: Response, *, retry_after_s: float | None = None) -> None:
        self.response = response
        reason = f"{response.replica or 'the endpoint'} answered with status {response.status}"
        super().__init__(reason, status=response.status, stage="sent", retry_after_s=retry_after_s)


class Backend(Protocol):
    """Receiver of requests: one endpoint, a pool of endpoints, or a test double."""

    async def send(self, request: BackendRequest, deadline: Deadline) -> Response | StreamingResponse:
        """Send a request.

        Raises:
            UpstreamError: the endpoint responded with a status of 400 or more.
            ResilienceError: there is no complete response; its stage is the progress of the request.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections. Pending requests fail."""
        ...


Chunks = AsyncIterator[bytes]
