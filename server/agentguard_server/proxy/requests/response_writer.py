"""What goes back to one client: a head, a body or chunks of it, or an error in the shape of its API."""

from __future__ import annotations

from typing import Final

from agentguard.backends.base import Headers, Response
from agentguard_server.proxy.errors import ProxyError, error_body, error_event, error_headers
from agentguard_server.proxy.hooks import GuardOutcome
from agentguard_server.proxy.http.headers import guard_headers, response_headers
from agentguard_server.proxy.http.request_cycle import RequestCycle
from agentguard_server.proxy.routes import Route
from agentguard_server.proxy.state import AppState, Send

REQUEST_ID_HEADER: Final = b"agentguard-request"
_REPLICA_HEADER: Final = b"agentguard-replica"
_UPSTREAM_HEADER: Final = b"agentguard-upstream"
_EVENT_STREAM: Final = b"text/event-stream"
_BODILESS_STATUSES: Final = frozenset({204, 304})
CLIENT_CLOSED_REQUEST: Final = 499
"""The status that is recorded for a client who has left (nginx's)."""


class ResponseAborted(Exception):
    """The answer broke off where no error can be told: the connection must end without its proper end."""


class ResponseWriter:
    """What one client gets, and has got so far.

    Args:
        gateway: its clock, and how much of an answer recorders want to see.
        send: of ASGI.
        request_id: goes into each head.
        route: which API's shape errors have.
        line: the connection, where the server is our own: what is sent there costs less.

    Attributes:
        status: that the client got; 0 if it got none, 499 if it left.
        replica: who answered.
        notes: what became of the request on its way.
        error: code of the error that ended it; empty if none did.
        complete: whether the client got all of the answer.
        first_at: clock time of the first byte; None if there was none.
    """

    __slots__ = (
        "_app_state",
        "_capture_room",
        "_captured_parts",
        "_cycle",
        "_id",
        "_is_event_stream",
        "_is_started",
        "_route",
        "_send",
        "error_code",
        "first_byte_at",
        "is_complete",
        "notes",
        "replica",
        "status",
    )  # fmt: skip

    def __init__(
        self,
        app_state: AppState,
        send: Send,
        request_id: str,
        route: Route,
        *,
        cycle: RequestCycle | None = None,
    ) -> None:
        self._app_state, self._send, self._id, self._route = app_state, send, request_id, route
        self._cycle = cycle
        self._captured_parts: list[bytes] = []
        self._capture_room = app_state.max_captured_bytes
        self._is_started = self._is_event_stream = self.is_complete = False
        self.status, self.replica, self.error_code = 0, "", ""
        self.notes: tuple[tuple[str, str], ...] = ()
        self.first_byte_at: float | None = None

    @property
    def captured_body(self) -> bytes:
        """The beginning of what the client got, as much as recorders want to see."""
        return b"".join(self._captured_parts)

    async def send_response(self, response: Response, outcome: GuardOutcome | None = None) -> None:
        """Send a whole response, with the proxy's headers."""
        headers = self._prepare_response(response, outcome)
        body, line = response.body, self._cycle
        if (
            line is None
            or response.status in _BODILESS_STATUSES
            or not line.write_response(response.status, headers, body)
        ):
            await self._send({"type": "http.response.start", "status": response.status, "headers": headers})
            await self._send({"type": "http.response.body", "body": body})
        self.is_complete = True

    def _prepare_response(
        self, response: Response, outcome: GuardOutcome | None
    ) -> list[tuple[bytes, bytes]]:
        self.replica, self.notes = response.replica, response.notes
        headers = response_headers(response.headers)
        if response.status not in _BODILESS_STATUSES:
            headers.append((b"content-length", _content_length(response)))
        self._complete_head(response.status, headers, outcome)
        if self._capture_room:
            self._capture(response.body)
        return headers

    async def start_response(
        self, status: int, headers: Headers, outcome: GuardOutcome | None = None
    ) -> None:
        """Begin an answer whose body comes in chunks."""
        kept = response_headers(headers)
        self._is_event_stream = any(
            name == b"content-type" and value.startswith(_EVENT_STREAM) for name, value in kept
        )
        await self._send_head(status, kept, outcome)

    async def send_chunk(self, data: bytes) -> None:
        """Hand on a part of the body; waits while the client does not read."""
        if not self.try_send_chunk(data):
            if self._capture_room:
                self._capture(data)
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def try_send_chunk(self, data: bytes) -> bool:
        """Hand on a part of the body if the client need not be waited for; whether that was so."""
        if not data:
            return True
        line = self._cycle
        if line is None or not line.write_chunk(data):
            return False
        if self._capture_room > 0:
            self._capture(data)
        return True

    async def end_response(self) -> None:
        """The body is whole."""
        if self._cycle is None or not self._cycle.end_response():
            await self._send({"type": "http.response.body", "body": b""})
        self.is_complete = True

    async def send_error(self, error: ProxyError) -> None:
        """End with an error: as an answer if it does not exist yet, else as the last event.

        Raises:
            Broken: the body has begun and is no stream of events.
        """
        self.error_code = error.code
        if not self._is_started:
            body = error_body(error, self._route.error_shape, self._id)
            headers = [*error_headers(error), (b"content-length", b"%d" % len(body))]
            await self._send_head(error.status, headers, None)
            self._capture(body)
            await self._send({"type": "http.response.body", "body": body})
        elif self._is_event_stream:
            await self.send_error_event(error.code, error_event(error, self._route.api, self._id))
        else:
            raise ResponseAborted

    async def send_error_event(self, code: str, event: bytes) -> None:
        """End a stream with an error that another has worded."""
        self.error_code = code
        self._capture(event)
        await self._send({"type": "http.response.body", "body": event})

    def on_client_disconnect(self) -> None:
        """The client has left."""
        self.error_code, self.status = self.error_code or "client_left", CLIENT_CLOSED_REQUEST

    async def _send_head(
        self, status: int, headers: list[tuple[bytes, bytes]], outcome: GuardOutcome | None
    ) -> None:
        self._complete_head(status, headers, outcome)
        if self._cycle is None or not self._cycle.start_response(status, headers):
            await self._send({"type": "http.response.start", "status": status, "headers": headers})

    def _complete_head(
        self, status: int, headers: list[tuple[bytes, bytes]], outcome: GuardOutcome | None
    ) -> None:
        headers.append((REQUEST_ID_HEADER, self._id.encode()))
        if self.replica:
            headers.append((_REPLICA_HEADER, self.replica.encode("latin-1", "replace")))
        if self.notes:
            told = ", ".join(f"{name}={value}" for name, value in self.notes)
            headers.append((_UPSTREAM_HEADER, told.encode("latin-1", "replace")))
        if outcome is not None:
            headers += guard_headers(outcome)
        self.status, self._is_started = status, True
        self.first_byte_at = self._app_state.clock.now()

    def _capture(self, data: bytes) -> None:
        room = self._capture_room
        if room > 0:
            self._captured_parts.append(data if len(data) <= room else data[:room])
            self._capture_room = room - len(data)


def _content_length(response: Response) -> bytes:
    """The length of the body, or, where that was not asked for (HEAD), the one that we were told."""
    if not response.body:
        return next((value for name, value in response.headers if name == b"content-length"), b"0")
    return b"%d" % len(response.body)
