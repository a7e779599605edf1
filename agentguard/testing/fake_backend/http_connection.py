"""Server side of an HTTP/1.1 connection: requests, responses, pauses and resets."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

MAX_HEAD_BYTES: Final = 1 << 20
MAX_BODY_BYTES: Final = 1 << 30
_WRITE_BUFFER_BYTES: Final = 1 << 16
JSON_TYPE: Final = "application/json"
EVENT_STREAM_TYPE: Final = "text/event-stream; charset=utf-8"
_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}


class ClientGone(Exception):
    """Error of a connection that the client closed or reset."""


class MalformedRequest(Exception):
    """Error of received bytes that are not an HTTP/1.1 request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """Request as received, with header names in lower case."""

    method: str
    target: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    keep_alive: bool


RequestCallback = Callable[["ServerConnection", ParsedRequest], Awaitable[bool]]
"""Callback that responds to a request and returns whether the connection accepts another one."""


class ServerConnection(asyncio.Protocol):
    """Connection of one client; `sent_bytes` counts the bytes that were passed to the operating system.

    Args:
        number: number of the connection.
        serve: responds to each request.
        on_disconnect: called once when the connection has ended.
    """

    def __init__(
        self, number: int, serve: RequestCallback, on_disconnect: Callable[[ServerConnection], None]
    ) -> None:
        self.number, self._serve, self._on_disconnect = number, serve, on_disconnect
        self.sent_bytes = 0
        self.disconnected_at: float | None = None
        self._buffer = bytearray()
        self._data_available, self._writable = asyncio.Event(), asyncio.Event()
        self._disconnected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writable.set()
        self._raw_transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start reading requests."""
        assert isinstance(transport, asyncio.Transport)  # for the type checker
        self._raw_transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def is_connected(self) -> bool:
        """Return whether the transport exists."""
        return self._raw_transport is not None

    @property
    def _transport(self) -> asyncio.Transport:
        assert self._raw_transport is not None  # asyncio calls connection_made first
        return self._raw_transport

    def data_received(self, data: bytes) -> None:
        """Buffer the received data."""
        self._buffer += data
        self._data_available.set()

    def eof_received(self) -> None:
        """Handle the end of the client's data as a disconnect."""
        self._mark_disconnected()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  the loop names it
        """Handle the end of the connection, whichever side caused it."""
        self._mark_disconnected()
        self._on_disconnect(self)

    def pause_writing(self) -> None:
        """Pause writing: the client reads too slowly."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Resume writing: the client has caught up."""
        self._writable.set()

    def _mark_disconnected(self) -> None:
        if self.disconnected_at is None:
            self.disconnected_at = time.monotonic()
            self._disconnected.set_result(None)
        self._data_available.set()
        self._writable.set()

    async def write(self, data: bytes) -> None:
        """Send bytes as fast as the client reads them. Raises ClientGone."""
        for begin in range(0, len(data), _WRITE_BUFFER_BYTES):
            await self._writable.wait()
            if begin:
                await asyncio.sleep(0)  # let the event loop detect a disconnect
            if self._disconnected.done() or self._transport.is_closing():
                raise ClientGone
            part = data[begin : begin + _WRITE_BUFFER_BYTES]
            self._transport.write(part)
            self.sent_bytes += len(part)

    async def sleep(self, seconds: float) -> None:
        """Wait for seconds, or for ever if infinite. Raises ClientGone as soon as the client disconnects."""
        await asyncio.wait((self._disconnected,), timeout=None if seconds == float("inf") else seconds)
        if self._disconnected.done():
            raise ClientGone

    def reset(self) -> None:
        """Reset the connection; unsent data is lost."""
        if self._raw_transport is None:
            return
        if not self._raw_transport.is_closing():
            linger = struct.pack("ii", 1, 0)
            self._raw_transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, linger
            )
        self._raw_transport.abort()  # a closing transport waits for ever for a client that does not read

    def close(self) -> None:
        """Close the connection after all data is sent."""
        self._transport.close()

    async def _run(self) -> None:
        try:
            while await self._serve(self, await self._read_request()):
                pass
        except ClientGone:
            pass
        except MalformedRequest:
            self._transport.write(
                b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
        finally:
            self._transport.close()

    async def _read_request(self) -> ParsedRequest:
        """Read one request. Raises ClientGone or MalformedRequest."""
        head = await self._read_until(b"\r\n\r\n", MAX_HEAD_BYTES)
        first, *lines = head[:-4].split(b"\r\n")
        try:
            method, target, version = first.decode("ascii").split(" ")
            pairs = [line.split(b":", 1) for line in lines]
            headers = tuple((name.lower(), value.strip(b" \t")) for name, value in pairs)
            header_values = dict(headers)
            if header_values.get(b"expect", b"").lower() == b"100-continue":
                await self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            if b"chunked" in header_values.get(b"transfer-encoding", b"").lower():
                body = await self._read_chunks()
            else:
                body = await self._read_exactly(int(header_values.get(b"content-length", b"0")))
        except ValueError:
            raise MalformedRequest from None
        is_last = b"close" in header_values.get(b"connection", b"").lower() or version != "HTTP/1.1"
        return ParsedRequest(method=method, target=target, headers=headers, body=body, keep_alive=not is_last)

    async def _read_chunks(self) -> bytes:
        body = bytearray()
        while size := int((await self._read_until(b"\r\n", MAX_HEAD_BYTES)).split(b";")[0], 16):
            body += await self._read_exactly(size)
            await self._read_until(b"\r\n", 2)
        while await self._read_until(b"\r\n", MAX_HEAD_BYTES) != b"\r\n":
            pass
        return bytes(body)

    async def _read_until(self, end: bytes, max_bytes: int) -> bytes:
        begin = 0
        while (position := self._buffer.find(end, begin)) < 0:
            if len(self._buffer) > max_bytes:
                raise MalformedRequest
            begin = max(0, len(self._buffer) - len(end))
            await self._wait_for_data()
        return self._consume(position + len(end))

    async def _read_exactly(self, size: int) -> bytes:
        if not 0 <= size <= MAX_BODY_BYTES:
            raise MalformedRequest
        while len(self._buffer) < size:
            await self._wait_for_data()
        return self._consume(size)

    async def _wait_for_data(self) -> None:
        if self._disconnected.done():
            raise ClientGone
        self._data_available.clear()
        await self._data_available.wait()

    def _consume(self, size: int) -> bytes:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data


def format_head(status: int, content_type: str, *extra_headers: str) -> bytes:
    """Return the head of a response."""
    phrase = _PHRASES.get(status, "Unknown")
    lines = (
        f"HTTP/1.1 {status} {phrase}",
        f"content-type: {content_type}",
        "server: fault-backend",
        *extra_headers,
    )
    return "\r\n".join((*lines, "", "")).encode("latin-1")


def format_chunk(data: bytes) -> bytes:
    """Return a chunk of a body (RFC 9112, 7.1); b"" for no data, because an empty chunk ends the body."""
    return b"%x\r\n%s\r\n" % (len(data), data) if data else b""


def format_chunks(parts: Sequence[bytes]) -> bytes:
    """Return one chunk for each part."""
    return b"".join(map(format_chunk, parts))


def format_response(
    body: bytes, *, status: int = 200, content_type: str = JSON_TYPE, extra_headers: list[str] | None = None
) -> bytes:
    """Return a complete response with a Content-Length."""
    return format_head(status, content_type, f"content-length: {len(body)}", *(extra_headers or [])) + body
