"""A request read whole, within the limits of its size and of its time."""

from __future__ import annotations

import asyncio

from agentguard_server.proxy.errors import ProxyError
from agentguard_server.proxy.http.request_cycle import RequestCycle
from agentguard_server.proxy.state import AppState, Receive


class ClientDisconnected(Exception):
    """The client has left before its request was whole."""


def buffered_body(
    app_state: AppState, cycle: RequestCycle | None, content_length: bytes | None
) -> bytes | None:
    """The body, if all of it is there; None if it must be waited for.

    Args:
        gateway: has the limits.
        line: the connection, where the server is our own.
        declared: what the request says of its body's length.

    Raises:
        Refusal: 413 where it is too long, before it is read where that is said.
    """
    limits = app_state.settings.limits
    if (
        content_length is not None
        and len(content_length) < 20
        and int(content_length) > limits.max_body_bytes
    ):
        raise _body_too_large(limits.max_body_bytes)
    whole = None if cycle is None else cycle.complete_body()
    if whole is not None and len(whole) > limits.max_body_bytes:
        raise _body_too_large(limits.max_body_bytes)
    return whole


async def read_body(app_state: AppState, cycle: RequestCycle | None, receive: Receive) -> bytes:
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
        async with asyncio.timeout(app_state.settings.limits.body_timeout_s):
            return await _receive_body(app_state, receive)
    except TimeoutError:
        raise ProxyError(
            408, "request_timeout", "the body did not come in time", closes_connection=True
        ) from None
    finally:
        if cycle is not None:
            cycle.resume_reading()


async def _receive_body(app_state: AppState, receive: Receive) -> bytes:
    limits, parts, size = app_state.settings.limits, [], 0
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            part = message.get("body", b"")
            if part:
                parts.append(part)
                size += len(part)
                app_state.buffered_bytes += len(part)
                if size > limits.max_body_bytes:
                    raise _body_too_large(limits.max_body_bytes)
                if app_state.buffered_bytes > limits.max_buffered_bytes:
                    raise ProxyError(
                        503,
                        "overloaded",
                        "too much is being sent at once",
                        retry_after_s=1,
                        closes_connection=True,
                    )
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        app_state.buffered_bytes -= size


def _body_too_large(limit: int) -> ProxyError:
    return ProxyError(413, "request_too_large", f"a body has at most {limit:,} bytes", closes_connection=True)
