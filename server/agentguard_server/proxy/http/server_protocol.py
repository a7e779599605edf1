"""HTTP/1.1 connection on httptools, with limits on clients.

* The head of a request must arrive in time and within its size limit.
* A client must read its responses; every wait has a timeout.
* After the rejection of a request with an unread body, the server continues to read for 1 s. Otherwise a
  reset could discard the error. Then the server closes the connection (RFC 9112, 9.6).
* A pipelined request waits for the response to the earlier one. The server reads nothing in this time.
* The parser, llhttp, is strict: it rejects two lengths, a length beside chunks, a bare LF and a folded line.

uvicorn accepts and closes the connections. Its own protocol has none of these limits, creates several
objects and timers for each request, and takes twice the time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal

import httptools
import uvicorn
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from agentguard.resilience.deadline import ReusableTimer
from agentguard_server.proxy.config.schema import LimitsOptions
from agentguard_server.proxy.errors import ProxyError, build_error_headers, encode_error_body
from agentguard_server.proxy.http.request_cycle import RequestCycle

_LINGER_TIMEOUT_S: Final = 1.0
_HIGH_WATER_BYTES: Final = 65_536
"""Size of unconsumed body data above which the connection stops reading."""
_ASGI_VERSION: Final = {"version": "3.0", "spec_version": "2.3"}
_IGNORED_UPGRADES: Final = frozenset({b"connection", b"upgrade", b"http2-settings"})
_REASON_PHRASES: Final = {
    400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large",
    501: b"Not Implemented", 503: b"Service Unavailable",
}  # fmt: skip


class HttpServerProtocol(asyncio.Protocol):
    """Connection of a client; uvicorn's server creates it.

    Attributes:
        transport: asyncio transport.
        base_scope: part of the ASGI scope that all requests of the connection share.
        cycle: the latest request; None before the first.
        disconnect_listener: request to notify when the client disconnects.
        drained: event that is set when the client has read enough output; None while output is not blocked.
        tasks: tasks of all connections that serve requests.
        tunnel_sink: receiver of all further bytes after the switch to WebSocket; None before it.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        del app_state
        self._app: Any = config.loaded_app
        self._loop = _loop or asyncio.get_running_loop()
        self._connections, self.tasks = server_state.connections, server_state.tasks
        self._parser: Any = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # ignore data after the close
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self._limits: LimitsOptions = self._app.app_state.settings.limits
        self.base_scope: dict[str, Any] = {}
        self._url, self._headers = b"", list[tuple[bytes, bytes]]()
        self.cycle: RequestCycle | None = None
        self.disconnect_listener: RequestCycle | None = None
        self.drained: asyncio.Event | None = None
        self._pipeline: deque[RequestCycle] = deque()
        self._phase: Literal["idle", "head", "body"] = "idle"
        self._unparsed_bytes = 0  # bytes since the last complete head or part of a body
        self._is_discarding = self._is_upgrading = self._is_paused = False
        self.tunnel_sink: Callable[[bytes], None] | None = None
        self._timer = ReusableTimer(self._loop)
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Open the connection and start the timeout for the first head."""
        self._connections.add(self)  # type: ignore[arg-type]
        self.transport = transport
        self.base_scope = {
            "type": "http",
            "asgi": _ASGI_VERSION,
            "server": get_local_addr(transport),
            "client": get_remote_addr(transport),
            "scheme": "https" if is_ssl(transport) else "http",
            "root_path": "",
        }
        if len(self._connections) > self._limits.max_connections:
            return self._reject(503, "overloaded", "too many connections")
        self._timer.arm(self._limits.header_timeout_s, self._on_header_timeout)
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the connection and notify the requests in flight."""
        del exc
        self._connections.discard(self)
        self._timer.cancel()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        listener, self.disconnect_listener = self.disconnect_listener, None
        for cycle in (self.cycle, listener):
            if cycle is not None and not cycle.is_complete:
                cycle.is_disconnected = True
                cycle.notify()
        if self.drained is not None:
            self.drained.set()
        self._parser = None
        if listener is not None and listener.disconnect_callback is not None:
            callback, listener.disconnect_callback = listener.disconnect_callback, None
            callback()

    def eof_received(self) -> None:
        """Let asyncio close the connection, since the client has closed its side."""

    def data_received(self, data: bytes) -> None:
        """Parse received bytes."""
        if self._is_discarding:
            return None
        if self.tunnel_sink is not None:
            return self.tunnel_sink(data)
        if self._timer.callback == self._on_keepalive_timeout:
            self._timer.callback = None
        self._unparsed_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
            if self._is_websocket_request():
                self._start_websocket(rest)
            else:
                self._ignore_upgrade(rest)
        except httptools.HttpParserError:
            self._reject(400, "invalid_request", "the request is not valid HTTP/1.1")
        else:
            if not self._is_discarding:
                self._arm_timer()

    def _arm_timer(self) -> None:
        """Start the timeout for the next part of a request, and check the size of the head."""
        phase, cycle = self._phase, self.cycle
        if phase == "idle" and cycle is not None and not cycle.is_complete:  # the handler serves the request
            self._timer.callback, self._unparsed_bytes = None, 0
        elif phase != "idle" and self._unparsed_bytes > self._limits.max_header_bytes:
            self._reject(431, "head_too_large", "the head of the request exceeds the limit")
        elif phase == "body":
            self._timer.callback = None
        elif self._timer.callback is None:
            self._timer.arm(self._limits.header_timeout_s, self._on_header_timeout)

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._phase, self._url, self._headers = "head", b"", []

    def on_url(self, url: bytes) -> None:
        """Add a part of the request target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; trailers after a body are ignored, so that they cannot set keys or names."""
        if self._phase == "head":
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Check the head and start the application, or queue a pipelined request."""
        if self._is_discarding:
            return None
        parser, headers = self._parser, self._headers
        if parser.should_upgrade():
            self._is_upgrading = True
            return None
        self._limits = limits = self._app.app_state.settings.limits
        if len(headers) > limits.max_headers or (
            self._unparsed_bytes > limits.max_header_bytes
            and self._compute_header_size() > limits.max_header_bytes
        ):
            return self._reject(431, "head_too_large", "the head of the request exceeds the limit")
        fields, version = dict(headers), parser.get_http_version()
        if len(fields) < len(headers) and [name for name, _ in headers].count(b"host") > 1:
            return self._reject(400, "invalid_request", "a request must have exactly one Host header")
        if b"host" not in fields and version != "1.0":
            return self._reject(400, "invalid_request", "a request must have exactly one Host header")
        self._phase, self._unparsed_bytes = "body", 0
        path, query = _split_target(self._url)
        method = parser.get_method().decode("ascii")
        keep_alive = version != "1.0" and parser.should_keep_alive()
        expects_continue = b"expect" in fields and any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in headers
        )
        previous = self.cycle
        self.cycle = cycle = RequestCycle(
            self,
            method,
            version,
            raw_path=path,
            query_string=query,
            headers=headers,
            keep_alive=keep_alive,
            expects_continue=expects_continue,
        )
        if previous is None or previous.is_complete:
            self._start_request(cycle)
        else:
            self.pause_reading()
            self._pipeline.append(cycle)
        return None

    def on_body(self, body: bytes) -> None:
        """Add a part of the body."""
        self._unparsed_bytes, cycle = 0, self.cycle
        if cycle is not None and not (self._is_discarding or cycle.is_complete):
            cycle.feed_body(body)
            if cycle.body_size > _HIGH_WATER_BYTES:
                self.pause_reading()

    def on_message_complete(self) -> None:
        """Complete the request."""
        if self._is_discarding or self._is_upgrading:
            return
        self._phase, cycle = "idle", self.cycle
        if cycle is not None and not cycle.is_complete:
            cycle.end_body()

    # Reading and writing

    def pause_reading(self) -> None:
        """Stop reading from the client."""
        if not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the client again."""
        if self._is_paused:
            self._is_paused = False
            self.transport.resume_reading()

    def on_response_complete(self, cycle: RequestCycle) -> None:
        """Start the next pipelined request, the keepalive timeout, or the timeout for unread output."""
        self.disconnect_listener = None
        if self.transport.is_closing():
            return self._timer.arm(self._limits.write_timeout_s, self._abort)
        if self._is_paused:
            self.resume_reading()
        if self._pipeline:
            self._start_request(self._pipeline.popleft())
        elif cycle.more_body and not self._is_discarding:
            self.start_lingering()
        elif not self._is_discarding:
            self._timer.arm(max(1, int(self._limits.keepalive_timeout_s)), self._on_keepalive_timeout)
        return None

    def _start_request(self, cycle: RequestCycle) -> None:
        task = self._loop.create_task(self._app(cycle))
        self.tasks.add(task)
        task.add_done_callback(cycle.finalize)

    def pause_writing(self) -> None:
        """Start the write timeout, since the client does not read."""
        self.drained = self.drained or asyncio.Event()
        if self._write_timer is None:
            self._write_timer = self._loop.call_later(self._limits.write_timeout_s, self._abort)

    def resume_writing(self) -> None:
        """Cancel the write timeout, since the client reads again."""
        if self.drained is not None:
            self.drained.set()
            self.drained = None
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def start_lingering(self) -> None:
        """Close the write side and discard input for 1 s, so that a reset does not lose the response."""
        self._is_discarding = True
        self.resume_reading()
        if self.transport.can_write_eof():  # TLS has no half-closed connections
            self.transport.write_eof()
        self._timer.arm(_LINGER_TIMEOUT_S, self._close)

    # Closing

    def shutdown(self) -> None:
        """Close the connection now, or after the current response."""
        if self.cycle is None or self.cycle.is_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def _reject(self, status: int, code: str, reason: str) -> None:
        """Send an error for an invalid request, unless a response has begun, and discard all input."""
        self._is_discarding = True
        cycle = self.cycle
        if cycle is not None and not cycle.is_complete:
            cycle.keep_alive = False
            if cycle.is_response_started or self._pipeline or self._phase != "body":
                return
            cycle.is_disconnected = True  # the rest of its body cannot be parsed
            cycle.notify()
        refusal = ProxyError(status, code, reason, closes_connection=True)
        body = encode_error_body(refusal, "openai", "")
        lines = [b"HTTP/1.1 %d %s" % (status, _REASON_PHRASES[status])]
        lines += [b": ".join(pair) for pair in build_error_headers(refusal)]
        self.transport.write(b"\r\n".join([*lines, b"content-length: %d" % len(body), b"", body]))
        self.start_lingering()

    def _on_header_timeout(self) -> None:
        if self._phase == "head":
            self._reject(408, "request_timeout", "the head of the request did not arrive in time")
        else:
            self.transport.close()

    def _on_keepalive_timeout(self) -> None:
        """Close an idle connection after the client has read the rest of the output."""
        if not self.transport.is_closing():
            self.transport.close()
        self._timer.arm(self._limits.write_timeout_s, self._abort)

    def _close(self) -> None:
        self.transport.close()

    def _abort(self) -> None:
        self.transport.abort()

    def _compute_header_size(self) -> int:
        return len(self._url) + sum(len(name) + len(value) + 4 for name, value in self._headers)

    def _is_websocket_request(self) -> bool:
        cycle = self.cycle
        return (
            self._parser.get_method() == b"GET"
            and (cycle is None or cycle.is_complete)
            and [value.lower() for name, value in self._headers if name == b"upgrade"] == [b"websocket"]
        )

    def _start_websocket(self, early_data: bytes) -> None:
        """Start a request that may switch to WebSocket; buffer the bytes that arrive before the switch."""
        limits = self._app.app_state.settings.limits
        if len(self._headers) > limits.max_headers or self._compute_header_size() > limits.max_header_bytes:
            return self._reject(431, "head_too_large", "the head of the request exceeds the limit")
        if [name for name, _ in self._headers].count(b"host") != 1:
            return self._reject(400, "invalid_request", "a request must have exactly one Host header")
        self._is_upgrading, self._phase, self._timer.callback = False, "idle", None
        path, query = _split_target(self._url)
        self.cycle = cycle = RequestCycle(
            self,
            "GET",
            "1.1",
            raw_path=path,
            query_string=query,
            headers=self._headers,
            keep_alive=False,
            expects_continue=False,
        )
        cycle.more_body, cycle.early_data = False, early_data
        cycle.is_websocket = True
        self.tunnel_sink = cycle.buffer_early_data
        return self._start_request(cycle)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Continue in HTTP/1.1 if the client offers an upgrade, as Java's to h2c does (RFC 9110, 7.8)."""
        self._is_upgrading = False
        method = self._parser.get_method()
        if method == b"CONNECT":
            return self._reject(501, "invalid_request", "this is not a forward proxy")
        lines = [method + b" " + self._url + b" HTTP/1.1"]
        lines += [name + b": " + value for name, value in self._headers if name not in _IGNORED_UPGRADES]
        self._parser = httptools.HttpRequestParser(self)
        return self.data_received(b"\r\n".join([*lines, b"", rest]))


def _split_target(url: bytes) -> tuple[bytes, bytes]:
    """Split a request target into path and query. Raises HttpParserInvalidURLError."""
    if url.startswith(b"/") and b"#" not in url:
        path, _, query = url.partition(b"?")
        return path, query
    parsed = httptools.parse_url(url)
    return parsed.path, parsed.query or b""
