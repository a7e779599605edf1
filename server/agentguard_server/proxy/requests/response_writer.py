"""Writer of the response to one client: whole, in chunks, or an error in the format of its API."""

from __future__ import annotations

from typing import Final

from agentguard.backends.base import Headers, Response
from agentguard.resilience.clock import Clock
from agentguard_server.proxy.errors import (
    ProxyError,
    build_error_headers,
    encode_error_body,
    encode_error_event,
)
from agentguard_server.proxy.hooks import CompletedRequest, GuardOutcome, InterceptedRequest, ProxyRequest
from agentguard_server.proxy.http.headers import build_guard_headers, filter_response_headers
from agentguard_server.proxy.http.request_cycle import RequestCycle
from agentguard_server.proxy.routes import Route

REQUEST_ID_HEADER: Final = b"agentguard-request"
_REPLICA_HEADER: Final = b"agentguard-replica"
_UPSTREAM_HEADER: Final = b"agentguard-upstream"
_EVENT_STREAM: Final = b"text/event-stream"
_BODILESS_STATUSES: Final = frozenset({204, 304})
CLIENT_CLOSED_REQUEST: Final = 499
"""Recorded status of a request whose client disconnected (as in nginx)."""


class ResponseAborted(Exception):
    """Incomplete response that cannot carry an error; the connection must close without an end marker."""


class ResponseWriter:
    """Writer of the response to one client.

    Args:
        cycle: the request.
        route: route of the request; it determines the format of errors.
        request_id: ID of the request, sent as a response header.
        clock: source of time.
        max_captured_bytes: bytes of the response that are kept for observers.

    Attributes:
        status: status that the client received; 0 if it received none, 499 if it disconnected.
        replica: replica that responded.
        notes: events on the upstream side: attempts, hedges, failover, votes.
        error_code: code of the error that ended the request; empty without an error.
        is_complete: True if the client received the whole response.
        first_byte_at: clock time of the first byte; None before it.
    """

    __slots__ = (
        "_capture_room",
        "_captured_parts",
        "_clock",
        "_cycle",
        "_id",
        "_is_event_stream",
        "_is_started",
        "_route",
        "error_code",
        "first_byte_at",
        "is_complete",
        "notes",
        "replica",
        "status",
    )  # fmt: skip

    def __init__(
        self,
        cycle: RequestCycle,
        route: Route,
        request_id: str,
        *,
        clock: Clock,
        max_captured_bytes: int = 0,
    ) -> None:
        self._cycle, self._route, self._id, self._clock = cycle, route, request_id, clock
        self._captured_parts: list[bytes] = []
        self._capture_room = max_captured_bytes
        self._is_started = self._is_event_stream = self.is_complete = False
        self.status, self.replica, self.error_code = 0, "", ""
        self.notes: tuple[tuple[str, str], ...] = ()
        self.first_byte_at: float | None = None

    async def send_response(self, response: Response, outcome: GuardOutcome | None = None) -> None:
        """Send a whole response, with the proxy's headers."""
        headers = self._prepare_response(response, outcome)
        if response.status in _BODILESS_STATUSES or not self._cycle.write_response(
            response.status, headers, response.body
        ):
            await self._cycle.send_head(response.status, headers)
            await self._cycle.send_body(response.body)
        self.is_complete = True

    def _prepare_response(
        self, response: Response, outcome: GuardOutcome | None
    ) -> list[tuple[bytes, bytes]]:
        self.replica, self.notes = response.replica, response.notes
        headers = filter_response_headers(response.headers)
        if response.status not in _BODILESS_STATUSES:
            body = response.body
            headers.append((b"content-length", b"%d" % len(body) if body else _find_length(response)))
        self._complete_head(response.status, headers, outcome)
        if self._capture_room:
            self._capture(response.body)
        return headers

    def start_tunnel(self, response: Response) -> list[tuple[bytes, bytes]]:
        """Record the switch to WebSocket; return the headers of the response to the client."""
        self.replica, self.notes = response.replica, response.notes
        headers = filter_response_headers(response.headers)
        self._complete_head(response.status, headers, None)
        return headers

    async def start_response(
        self, status: int, headers: Headers, outcome: GuardOutcome | None = None
    ) -> None:
        """Begin a response whose body is sent in chunks."""
        filtered = filter_response_headers(headers)
        self._is_event_stream = any(
            name == b"content-type" and value.startswith(_EVENT_STREAM) for name, value in filtered
        )
        await self._send_head(status, filtered, outcome)

    async def send_chunk(self, data: bytes) -> None:
        """Send a part of the body; wait while the client does not read."""
        if not self.try_send_chunk(data):
            if self._capture_room:
                self._capture(data)
            await self._cycle.send_body(data, more_body=True)

    def try_send_chunk(self, data: bytes) -> bool:
        """Send a part of the body if this needs no wait; return whether it was sent."""
        if not data:
            return True
        if not self._cycle.write_chunk(data):
            return False
        if self._capture_room > 0:
            self._capture(data)
        return True

    async def end_response(self) -> None:
        """End the body."""
        if not self._cycle.end_response():
            await self._cycle.send_body(b"")
        self.is_complete = True

    async def send_error(self, error: ProxyError) -> None:
        """End with an error: as the response if none has begun, otherwise as the last event.

        Raises:
            ResponseAborted: the response has begun and is not an event stream.
        """
        self.error_code = error.code
        if not self._is_started:
            body = encode_error_body(error, self._route.error_shape, self._id)
            headers = [*build_error_headers(error), (b"content-length", b"%d" % len(body))]
            await self._send_head(error.status, headers, None)
            self._capture(body)
            await self._cycle.send_body(body)
            self.is_complete = True
        elif self._is_event_stream:
            await self.send_error_event(error.code, encode_error_event(error, self._route.api, self._id))
        else:
            raise ResponseAborted

    async def send_error_event(self, code: str, event: bytes) -> None:
        """End a stream with a given error event."""
        self.error_code = code
        self._capture(event)
        await self._cycle.send_body(event)

    def build_completed_request(
        self, request: ProxyRequest, intercepted: InterceptedRequest | None
    ) -> CompletedRequest:
        """Return the request with its result, for the observers."""
        started_at, first_byte_at = request.started_at, self.first_byte_at
        return CompletedRequest(
            request=request,
            sent_body=None if intercepted is None else intercepted.body,
            status=self.status,
            response_body=b"".join(self._captured_parts),
            is_complete=self.is_complete,
            replica=self.replica,
            error_code=self.error_code,
            guard_outcome=None if intercepted is None else intercepted.outcome,
            notes=self.notes,
            time_to_first_byte_s=None if first_byte_at is None else first_byte_at - started_at,
            duration_s=self._clock.now() - started_at,
        )

    def on_client_disconnect(self) -> None:
        """Record that the client disconnected."""
        self.error_code, self.status = self.error_code or "client_left", CLIENT_CLOSED_REQUEST

    async def _send_head(
        self, status: int, headers: list[tuple[bytes, bytes]], outcome: GuardOutcome | None
    ) -> None:
        self._complete_head(status, headers, outcome)
        if not self._cycle.start_response(status, headers):
            await self._cycle.send_head(status, headers)

    def _complete_head(
        self, status: int, headers: list[tuple[bytes, bytes]], outcome: GuardOutcome | None
    ) -> None:
        headers.append((REQUEST_ID_HEADER, self._id.encode()))
        if self.replica:
            headers.append((_REPLICA_HEADER, self.replica.encode("latin-1", "replace")))
        if self.notes:
            notes = ", ".join(f"{name}={value}" for name, value in self.notes)
            headers.append((_UPSTREAM_HEADER, notes.encode("latin-1", "replace")))
        if outcome is not None:
            headers += build_guard_headers(outcome)
        self.status, self._is_started = status, True
        self.first_byte_at = self._clock.now()

    def _capture(self, data: bytes) -> None:
        room = self._capture_room
        if room > 0:
            self._captured_parts.append(data if len(data) <= room else data[:room])
            self._capture_room = room - len(data)


def _find_length(response: Response) -> bytes:
    """Return the Content-Length of an upstream response without a body, as to HEAD; 0 if it has none."""
    return next((value for name, value in response.headers if name == b"content-length"), b"0")
