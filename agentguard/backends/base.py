"""What a backend is asked and what it answers: HTTP, reduced to what a proxy and its strategies need.

Bodies are bytes and stay as they came; only who must change one reads it. Names of headers are in lower case,
and those that belong to one connection (RFC 9110, 7.6.1) never pass through here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self

from agentguard.errors import BackendError
from agentguard.resilience.base import RequestPriority
from agentguard.resilience.deadline import Deadline

if TYPE_CHECKING:
    from agentguard.model_api import ApiFormat

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(slots=True, kw_only=True)
class BackendRequest:
    """One request to a model endpoint; `agentguard.resilience.Request` with HTTP in it. Not to be changed.

    Not frozen, and nor is `ScriptedAnswer`: they are made for each request, and that would take three times
    as long.

    Attributes:
        target: path and query below the endpoint's base URL, e.g. ``/chat/completions?x=1``.
        method: of HTTP.
        headers: what is passed on; the endpoint's own key is added where it is sent.
        body: as it is sent.
        api: how an answer is read that must be whole: its last event, its heartbeats; None passes all.
        stream: whether a stream of events was asked for.
        idempotent: whether sending it twice does no harm.
        priority: how late it is shed.
        model: the model that is asked for; empty where the body names none.
        session_id: the run that it belongs to, for policies that keep a run on one replica.
        prefix_digest: a digest of how its prompt begins, for policies that use a server's prefix cache.
        quorum_size: replicas that are asked at once, whose answers vote; 1 asks one.
        pinned_replica: that holds what it goes on with, as a stored response; asked as long as it is there and able.
        tried_replicas: replicas that were asked already, in order; the pool's own notes.
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


@dataclass(slots=True, kw_only=True)
class Response:
    """A whole answer. Not to be changed.

    Attributes:
        status: of HTTP.
        headers: as they came, without those of the connection.
        body: as it came.
        replica: name of who answered.
        notes: what became of the request on its way, by name: ``("hedged", "1")``, ``("voted", "2/3")``.
    """

    status: int
    headers: Headers = ()
    body: bytes = b""
    replica: str = ""
    notes: tuple[tuple[str, str], ...] = ()


class StreamingResponse(Protocol):
    """An answer that is a stream: iterate over it to its end, or close it.

    Each item is one or more whole server-sent events, as they came, or any bytes where the body is no stream
    of events. Iterating raises ResilienceError with stage ``committed`` once the first item was given.
    """

    status: int
    headers: Headers
    replica: str
    notes: tuple[tuple[str, str], ...]

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> bytes: ...

    async def aclose(self) -> None:
        """Close it; the connection with it, unless the stream was at its end."""
        ...


class UpstreamError(BackendError):
    """The endpoint answered with an error of its own; the answer can be handed on as it came.

    Attributes:
        response: with a status of 400 or more.
    """

    code = "refused"

    def __init__(self, response: Response, *, retry_after_s: float | None = None) -> None:
        self.response = response
        reason = f"{response.replica or 'the endpoint'} answered with status {response.status}"
        super().__init__(reason, status=response.status, stage="sent", retry_after_s=retry_after_s)


class Backend(Protocol):
    """Whoever answers requests: one endpoint, a pool of them, or a fault that stands in for one."""

    async def send(self, request: BackendRequest, deadline: Deadline) -> Response | StreamingResponse:
        """Send a request.

        Raises:
            Refused: the endpoint answered with a status of 400 or more.
            ResilienceError: there is no answer, or none that is whole; says how far the call had got.
        """
        ...

    async def aclose(self) -> None:
        """Close what is open. Requests that are under way fail."""
        ...


Chunks = AsyncIterator[bytes]
