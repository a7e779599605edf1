"""uvicorn's HTTP/1.1 connection with limits on what a client may use up: uvicorn has none of them.

A head must be whole in time and within its size; a client must read what it is sent; nothing of a connection
waits for ever. A request that is refused before its body was read is read on for a moment, so that the client
gets to see why, and then cut off (RFC 9112, 9.6).

Its parser, llhttp, is strict: two lengths, a length beside chunks, a bare LF or a folded line are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Literal

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from agentguard_server.proxy.intake import CONNECTION
from agentguard_server.proxy.line import Line
from agentguard_server.proxy.refusals import Refusal, body_of, headers_of
from agentguard_server.proxy.settings import LimitsOptions
from agentguard_server.proxy.unchunked import Unchunked

_LINGER_S: Final = 1.0
_IGNORED_UPGRADES: Final = frozenset({b"connection", b"upgrade", b"http2-settings"})
_PHRASES: Final = {
    400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large",
    501: b"Not Implemented", 503: b"Service Unavailable",
}  # fmt: skip


class Protocol(HttpToolsProtocol):
    """One connection."""

    lost: tuple[RequestResponseCycle, Callable[[], None]] | None = None
    _phase: Literal["idle", "head", "body"] = "idle"
    _quiet = 0  # bytes since something whole came of them: a head, or part of a body
    _hosts = 0
    _deaf = False
    _upgrading = False
    _timer: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None

    @property
    def limits(self) -> LimitsOptions:
        """Those that hold now."""
        limits: LimitsOptions = self.config.loaded_app.gateway.settings.limits
        return limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; a head must come in time."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            return self._refuse(503, "overloaded", "too many connections")
        self._arm(self.limits.head_s, self._head_late)
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """End; a request that is under way is told."""
        self._disarm()
        if self._stall is not None:
            self._stall.cancel()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        lost, self.lost = self.lost, None
        if lost is not None and not lost[0].response_complete:
            lost[0].disconnected = True
            lost[1]()

    def data_received(self, data: bytes) -> None:
        """Take bytes in."""
        if self._deaf:
            return
        self._unset_keepalive_if_required()
        self._quiet += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse(400, "invalid_request", "this is no valid HTTP request")
        else:
            self._after()

    def _after(self) -> None:
        """What is waited for next, and for how long."""
        if self._deaf:
            return
        if self._phase != "idle" and self._quiet > self.limits.head_bytes:
            self._refuse(431, "head_too_large", "the head of a request has a limit")
        elif self._phase == "head" or (self._phase == "idle" and not self._busy()):
            if self._timer is None:
                self._arm(self.limits.head_s, self._head_late)
        else:
            self._disarm()
            if self._phase == "idle":
                self._quiet = 0

    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # What the parser calls

    def on_message_begin(self) -> None:
        """A request begins."""
        self._phase, self._hosts = "head", 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; what comes after a body is none, whoever puts keys or names there."""
        if self._phase != "head":
            return
        name = name.lower()
        if name == b"host":
            self._hosts += 1
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is whole; the application begins."""
        if self._deaf:
            return None
        if self.parser.should_upgrade():
            self._upgrading = True
            return None
        limits = self.limits
        if len(self.headers) > limits.headers or (
            self._quiet > limits.head_bytes and self._size() > limits.head_bytes
        ):
            return self._refuse(431, "head_too_large", "the head of a request has a limit")
        if self._hosts != 1 and (self._hosts or self.parser.get_http_version() != "1.0"):
            return self._refuse(400, "invalid_request", "a request has one Host")
        self._phase, self._quiet = "body", 0
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            self.cycle.send = Unchunked(self.cycle)  # type: ignore[method-assign]
        self.scope[CONNECTION] = Line(self, self.cycle)  # type: ignore[typeddict-unknown-key]
        return None

    def on_body(self, body: bytes) -> None:
        """Part of a body."""
        self._quiet = 0
        if not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self._deaf or self._upgrading:
            return
        self._phase = "idle"
        super().on_message_complete()

    # Writing

    def on_response_complete(self) -> None:
        """An answer is written; the client has a while to read the rest of it."""
        self.lost = None
        early = not self.pipeline and self.cycle.more_body
        super().on_response_complete()
        if self.transport.is_closing():
            self._arm(self.limits.write_s, self._abort)
        elif early and not self._deaf:
            self.linger()

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        if self._stall is None:
            self._stall = self.loop.call_later(self.limits.write_s, self._abort)

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def timeout_keep_alive_handler(self) -> None:
        """Nothing came for long: the connection ends, once what is left of an answer is read."""
        super().timeout_keep_alive_handler()
        self._arm(self.limits.write_s, self._abort)

    def linger(self) -> None:
        """Say nothing more, and hear for a moment, so that what was said is not lost to a reset."""
        self._deaf = True
        if self.transport.can_write_eof():
            self.flow.resume_reading()
            self.transport.write_eof()
            self._arm(_LINGER_S, self.transport.close)
        else:
            self.transport.close()

    # Ends

    def _refuse(self, status: int, code: str, reason: str) -> None:
        """Answer what never became a request, unless an answer is being written: then just hear no more."""
        self._deaf = True
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
            if cycle.response_started or self.pipeline or self._phase != "body":
                return
            cycle.disconnected = True  # its body can't be read: the application gets no more of it
            cycle.message_event.set()
        refusal = Refusal(status, code, reason, close=True)
        body = body_of(refusal, "openai", "")
        lines = [b"HTTP/1.1 %d %s" % (status, _PHRASES[status])]
        lines += [b": ".join(pair) for pair in headers_of(refusal)]
        self.transport.write(b"\r\n".join([*lines, b"content-length: %d" % len(body), b"", body]))
        self.linger()

    def _head_late(self) -> None:
        self._timer = None
        if self._phase == "head":
            self._refuse(408, "request_timeout", "the head did not come in time")
        else:
            self.transport.close()

    def _abort(self) -> None:
        self.transport.abort()

    def _arm(self, seconds: float, callback: Callable[[], Any]) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, callback)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _without_upgrade(self, rest: bytes) -> None:
        """Go on in HTTP/1.1 where the client would also speak h2c, as the JDK's does (RFC 9110, 7.8)."""
        self._upgrading = False
        method = self.parser.get_method()
        if method == b"CONNECT":
            return self._refuse(501, "invalid_request", "this is no forward proxy")
        lines = [method + b" " + self.url + b" HTTP/1.1"]
        lines += [name + b": " + value for name, value in self.headers if name not in _IGNORED_UPGRADES]
        self.parser = httptools.HttpRequestParser(self)
        return self.data_received(b"\r\n".join([*lines, b"", rest]))
