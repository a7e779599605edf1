"""A request read whole, within the limits of its size and of its time."""

from __future__ import annotations

import asyncio

from agentguard_server.proxy.errors import ProxyError
from agentguard_server.proxy.http.request_cycle import RequestCycle
from agentguard_server.proxy.state import AppState, Receive


class ClientDisconnected(Exception):
    """The client has left before its request was whole."""


def buffered_body(gateway: AppState, line: RequestCycle | None, declared: bytes | None) -> bytes | None:
    """The body, if all of it is there; None if it must be waited for.

    Args:
        gateway: has the limits.
        line: the connection, where the server is our own.
        declared: what the request says of its body's length.

    Raises:
        Refusal: 413 where it is too long, before it is read where that is said.
    """
    limits = gateway.settings.limits
    if declared is not None and len(declared) < 20 and int(declared) > limits.body_bytes:
        raise _too_long(limits.body_bytes)
    whole = None if line is None else line.complete_body()
    if whole is not None and len(whole) > limits.body_bytes:
        raise _too_long(limits.body_bytes)
    return whole


async def read_body(gateway: AppState, line: RequestCycle | None, receive: Receive) -> bytes:
    """The body, waited for.

    Args:
        gateway: has the limits.
        line: the connection, where the server is our own.
        receive: of ASGI.

    Raises:
        Refusal: 413 where it is too long; 408 where it takes too long; 503 where too many bodies are being
            read.
        Left: the client has left.
    """
    try:
        async with asyncio.timeout(gateway.settings.limits.body_s):
            return await _read(gateway, receive)
    except TimeoutError:
        raise ProxyError(408, "request_timeout", "the body did not come in time", close=True) from None
    finally:
        if line is not None:
            line.resume_reading()


async def _read(gateway: AppState, receive: Receive) -> bytes:
    limits, parts, size = gateway.settings.limits, [], 0
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            part = message.get("body", b"")
            if part:
                parts.append(part)
                size += len(part)
                gateway.reading += len(part)
                if size > limits.body_bytes:
                    raise _too_long(limits.body_bytes)
                if gateway.reading > limits.bodies_bytes:
                    raise ProxyError(
                        503, "overloaded", "too much is being sent at once", retry_after_s=1, close=True
                    )
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        gateway.reading -= size


def _too_long(limit: int) -> ProxyError:
    return ProxyError(413, "request_too_large", f"a body has at most {limit:,} bytes", close=True)
