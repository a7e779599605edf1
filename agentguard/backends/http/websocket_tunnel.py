"""WebSocket tunnel to an endpoint: a connection switched from HTTP to WebSocket (RFC 9110, 7.8; RFC 6455)."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

from agentguard.backends.base import Headers, Response, UpstreamError
from agentguard.backends.http.egress_policy import EgressPolicy, UpstreamOrigin, resolve_addresses
from agentguard.backends.http.limits import HttpLimits
from agentguard.errors import BackendError
from agentguard.resilience.deadline import Deadline

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.1 ([1-5]\d\d)(?: [^\r\n\0]*)?")
_HEADER_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*)")
_UPGRADE_LINES: Final = b"connection: Upgrade\r\nupgrade: websocket\r\n\r\n"


class WebSocketTunnel:
    """Connection after the endpoint has accepted the switch; it carries bytes in both directions.

    Args:
        reader: bytes from the endpoint.
        writer: bytes to the endpoint.
    """

    __slots__ = ("_reader", "_writer")

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def receive(self) -> bytes:
        """Return the next bytes from the endpoint; empty at the end."""
        try:
            return await self._reader.read(65_536)
        except OSError:
            return b""

    async def send(self, data: bytes) -> None:
        """Send bytes to the endpoint; wait while it does not read. Raises OSError if it has disconnected."""
        self._writer.write(data)
        await self._writer.drain()

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


async def open_websocket_tunnel(
    head: bytes,
    origin: UpstreamOrigin,
    egress: EgressPolicy,
    limits: HttpLimits,
    deadline: Deadline,
    *,
    tls_arguments: dict[str, Any],
    name: str,
) -> Response:
    """Send the head of a request and switch the protocol.

    Args:
        head: head of the request, with its blank line.
        origin: the endpoint.
        egress: policy on the addresses that its name may resolve to.
        limits: limits on time and sizes.
        deadline: deadline of the switch.
        tls_arguments: TLS arguments of asyncio's ``open_connection``.
        name: name of the endpoint in the response.

    Returns:
        A response with status 101 and a tunnel.

    Raises:
        UpstreamError: the endpoint responded with a status of 400 or more.
        BackendError: the endpoint was not reached, or its response is not valid.
    """
    writer = None
    try:
        async with asyncio.timeout(deadline.remaining()):
            reader, writer = await _connect(origin, egress, limits, tls_arguments)
            writer.write(head[:-2] + _UPGRADE_LINES)
            response = await _read_response(reader, limits, name)
    except TimeoutError:
        _abort(writer)
        raise BackendError("the endpoint did not switch to WebSocket in time", stage="sent") from None
    except BaseException:
        _abort(writer)
        raise
    if response.status == 101:
        response.tunnel = WebSocketTunnel(reader, writer)
        return response
    _abort(writer)
    if response.status < 400:
        raise BackendError(
            f"the endpoint answered the WebSocket handshake with status {response.status}", stage="sent"
        )
    raise UpstreamError(response)


async def _connect(
    origin: UpstreamOrigin, egress: EgressPolicy, limits: HttpLimits, tls_arguments: dict[str, Any]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    addresses = await resolve_addresses(origin, egress)
    for address in addresses:
        try:
            async with asyncio.timeout(limits.connect_timeout_s):
                return await asyncio.open_connection(
                    address, origin.port, limit=limits.max_header_bytes, **tls_arguments
                )
        except OSError:
            continue
    raise BackendError("the endpoint could not be reached", stage="unsent")


async def _read_response(reader: asyncio.StreamReader, limits: HttpLimits, name: str) -> Response:
    try:
        first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
        raise BackendError("the endpoint did not answer the WebSocket handshake", stage="sent") from None
    status = _STATUS_LINE.fullmatch(first)
    fields = [_HEADER_LINE.fullmatch(line) for line in lines]
    if status is None or not all(fields):
        raise BackendError("the endpoint's answer is not valid HTTP", stage="sent")
    headers: Headers = tuple((one[1].lower(), one[2].strip()) for one in fields if one is not None)
    body = b"" if status[1] == b"101" else await _read_error_body(reader, headers, limits)
    return Response(status=int(status[1]), headers=headers, body=body, replica=name)


async def _read_error_body(reader: asyncio.StreamReader, headers: Headers, limits: HttpLimits) -> bytes:
    """Return the body of an error response; empty if its length is missing or above the limit."""
    length = dict(headers).get(b"content-length", b"")
    if not length.isdigit() or len(length) > 9 or int(length) > limits.max_error_bytes:
        return b""
    try:
        return await reader.readexactly(int(length))
    except (asyncio.IncompleteReadError, OSError):
        return b""


def _abort(writer: asyncio.StreamWriter | None) -> None:
    if writer is not None:
        writer.transport.abort()
