"""What goes back to one client: a head, a body or chunks of it, or an error in the shape of its API."""

from __future__ import annotations

from typing import Final

from agentguard.backends.base import Headers, Response
from agentguard_server.proxy.errors import ProxyError, error_body, error_event, error_headers
from agentguard_server.proxy.http.headers import response_headers
from agentguard_server.proxy.http.request_cycle import RequestCycle
from agentguard_server.proxy.routes import Route
from agentguard_server.proxy.state import AppState, Send

REQUEST_ID: Final = b"agentguard-request"
_REPLICA: Final = b"agentguard-replica"
_NOTES: Final = b"agentguard-notes"
_EVENTS: Final = b"text/event-stream"
_BODILESS: Final = frozenset({204, 304})
CLIENT_LEFT: Final = 499
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
        "_begun", "_events", "_gateway", "_id", "_kept", "_line", "_room", "_route", "_send", "complete",
        "error", "first_at", "notes", "replica", "status",
    )  # fmt: skip

    def __init__(
        self,
        gateway: AppState,
        send: Send,
        request_id: str,
        route: Route,
        *,
        line: RequestCycle | None = None,
    ) -> None:
        self._gateway, self._send, self._id, self._route = gateway, send, request_id, route
        self._line = line
        self._kept: list[bytes] = []
        self._room = gateway.capture_bytes
        self._begun = self._events = self.complete = False
        self.status, self.replica, self.error = 0, "", ""
        self.notes: tuple[tuple[str, str], ...] = ()
        self.first_at: float | None = None

    @property
    def kept(self) -> bytes:
        """The beginning of what the client got, as much as recorders want to see."""
        return b"".join(self._kept)

    async def answer(self, answer: Response, extra: Headers = ()) -> None:
        """Hand on a whole answer, with headers of ours."""
        headers = self._of_answer(answer, extra)
        body, line = answer.body, self._line
        if line is None or answer.status in _BODILESS or not line.respond(answer.status, headers, body):
            await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})
            await self._send({"type": "http.response.body", "body": body})
        self.complete = True

    def _of_answer(self, answer: Response, extra: Headers) -> list[tuple[bytes, bytes]]:
        self.replica, self.notes = answer.replica, answer.notes
        headers = response_headers(answer.headers)
        if answer.status not in _BODILESS:
            headers.append((b"content-length", _length(answer)))
        self._complete_head(answer.status, headers, extra)
        if self._room:
            self._keep(answer.body)
        return headers

    async def begin(self, status: int, headers: Headers, extra: Headers = ()) -> None:
        """Begin an answer whose body comes in chunks."""
        kept = response_headers(headers)
        self._events = any(name == b"content-type" and value.startswith(_EVENTS) for name, value in kept)
        await self._head(status, kept, extra)

    async def chunk(self, data: bytes) -> None:
        """Hand on a part of the body; waits while the client does not read."""
        if not self.pushed(data):
            if self._room:
                self._keep(data)
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def pushed(self, data: bytes) -> bool:
        """Hand on a part of the body if the client need not be waited for; whether that was so."""
        if not data:
            return True
        line = self._line
        if line is None or not line.push(data):
            return False
        if self._room > 0:
            self._keep(data)
        return True

    async def end(self) -> None:
        """The body is whole."""
        if self._line is None or not self._line.finish():
            await self._send({"type": "http.response.body", "body": b""})
        self.complete = True

    async def refuse(self, refusal: ProxyError) -> None:
        """End with an error: as an answer if there is none yet, else as the last event.

        Raises:
            Broken: the body has begun and is no stream of events.
        """
        self.error = refusal.code
        if not self._begun:
            body = error_body(refusal, self._route.shape, self._id)
            headers = [*error_headers(refusal), (b"content-length", b"%d" % len(body))]
            await self._head(refusal.status, headers, ())
            self._keep(body)
            await self._send({"type": "http.response.body", "body": body})
        elif self._events:
            await self.fail(refusal.code, error_event(refusal, self._route.api, self._id))
        else:
            raise ResponseAborted

    async def fail(self, code: str, event: bytes) -> None:
        """End a stream with an error that another has worded."""
        self.error = code
        self._keep(event)
        await self._send({"type": "http.response.body", "body": event})

    def left(self) -> None:
        """The client has left."""
        self.error, self.status = self.error or "client_left", CLIENT_LEFT

    async def _head(self, status: int, headers: list[tuple[bytes, bytes]], extra: Headers) -> None:
        self._complete_head(status, headers, extra)
        if self._line is None or not self._line.begin(status, headers):
            await self._send({"type": "http.response.start", "status": status, "headers": headers})

    def _complete_head(self, status: int, headers: list[tuple[bytes, bytes]], extra: Headers) -> None:
        headers.append((REQUEST_ID, self._id.encode()))
        if self.replica:
            headers.append((_REPLICA, self.replica.encode("latin-1", "replace")))
        if self.notes:
            told = ", ".join(f"{name}={value}" for name, value in self.notes)
            headers.append((_NOTES, told.encode("latin-1", "replace")))
        headers.extend(extra)
        self.status, self._begun = status, True
        self.first_at = self._gateway.clock.now()

    def _keep(self, data: bytes) -> None:
        room = self._room
        if room > 0:
            self._kept.append(data if len(data) <= room else data[:room])
            self._room = room - len(data)


def _length(answer: Response) -> bytes:
    """The length of the body, or, where that was not asked for (HEAD), the one that we were told."""
    if not answer.body:
        return next((value for name, value in answer.headers if name == b"content-length"), b"0")
    return b"%d" % len(answer.body)
