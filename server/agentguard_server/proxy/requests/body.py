"""Reader of request bodies, with limits on their size, their time and their memory."""

from __future__ import annotations

import asyncio

from agentguard_server.proxy.config.schema import LimitsOptions
from agentguard_server.proxy.errors import ProxyError
from agentguard_server.proxy.http.request_cycle import RequestCycle


class ClientDisconnected(Exception):
    """Disconnect of the client before the end of its request."""


class BodyMemory:
    """Memory that the incomplete bodies of one worker use.

    Attributes:
        buffered_bytes: bytes of all incomplete bodies.
    """

    __slots__ = ("buffered_bytes",)

    def __init__(self) -> None:
        self.buffered_bytes = 0


def buffered_body(cycle: RequestCycle, limits: LimitsOptions, content_length: bytes | None) -> bytes | None:
    """Return the body if it is complete; None if the rest is still to be read.

    Raises:
        ProxyError: 413 if the body, or the length that its header declares, exceeds the limit.
    """
    if (
        content_length is not None
        and len(content_length) < 20
        and int(content_length) > limits.max_body_bytes
    ):
        raise _body_too_large(limits.max_body_bytes)
    body = cycle.complete_body()
    if body is not None and len(body) > limits.max_body_bytes:
        raise _body_too_large(limits.max_body_bytes)
    return body


async def read_body(cycle: RequestCycle, limits: LimitsOptions, memory: BodyMemory) -> bytes:
    """Wait for the body, and return it.

    Raises:
        ProxyError: 413 if the body is too long; 408 if it takes too long; 503 if the incomplete bodies of all
            requests use too much memory.
        ClientDisconnected: the client has disconnected.
    """
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            return await _receive_body(cycle, limits, memory)
    except TimeoutError:
        raise ProxyError(
            408, "request_timeout", "the body did not come in time", closes_connection=True
        ) from None
    finally:
        cycle.resume_reading()


async def _receive_body(cycle: RequestCycle, limits: LimitsOptions, memory: BodyMemory) -> bytes:
    parts, size = [], 0
    try:
        while True:
            part = await cycle.receive_part()
            if part is None:
                raise ClientDisconnected
            if part:
                parts.append(part)
                size += len(part)
                memory.buffered_bytes += len(part)
                if size > limits.max_body_bytes:
                    raise _body_too_large(limits.max_body_bytes)
                if memory.buffered_bytes > limits.max_buffered_bytes:
                    raise ProxyError(
                        503,
                        "overloaded",
                        "too much is being sent at once",
                        retry_after_s=1,
                        closes_connection=True,
                    )
            if not cycle.more_body:
                return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        memory.buffered_bytes -= size


def _body_too_large(limit: int) -> ProxyError:
    return ProxyError(413, "request_too_large", f"a body has at most {limit:,} bytes", closes_connection=True)
