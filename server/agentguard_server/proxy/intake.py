"""A request read whole, within the limits of its size and of its time."""

from __future__ import annotations

import asyncio
from typing import Final

from agentguard_server.proxy.gateway import Gateway, Receive, Scope
from agentguard_server.proxy.refusals import Refusal

CONNECTION: Final = "agentguard.connection"
"""Where our own server puts a request's connection; see `agentguard_server.proxy.connection`."""


class Left(Exception):
    """The client has left before its request was whole."""


async def body_of(gateway: Gateway, scope: Scope, receive: Receive, declared: bytes | None) -> bytes:
    """The body.

    Args:
        gateway: has the limits.
        scope: of ASGI.
        receive: of ASGI.
        declared: what the request says of its body's length.

    Raises:
        Refusal: 413 where it is too long, before it is read where that is said; 408 where it takes too long;
            503 where too many bodies are being read.
        Left: the client has left.
    """
    limits = gateway.settings.limits
    if declared is not None and len(declared) < 20 and int(declared) > limits.body_bytes:
        raise _too_long(limits.body_bytes)
    connection = scope.get(CONNECTION)
    if connection is not None and (whole := connection.whole()) is not None:
        return bytes(whole) if len(whole) <= limits.body_bytes else _refuse(limits.body_bytes)
    try:
        async with asyncio.timeout(limits.body_s):
            return await _read(gateway, receive)
    except TimeoutError:
        raise Refusal(408, "request_timeout", "the body did not come in time", close=True) from None
    finally:
        if connection is not None:
            connection.listen()


async def _read(gateway: Gateway, receive: Receive) -> bytes:
    limits, parts, size = gateway.settings.limits, [], 0
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Left
            part = message.get("body", b"")
            if part:
                parts.append(part)
                size += len(part)
                gateway.reading += len(part)
                if size > limits.body_bytes:
                    raise _too_long(limits.body_bytes)
                if gateway.reading > limits.bodies_bytes:
                    raise Refusal(
                        503, "overloaded", "too much is being sent at once", retry_after_s=1, close=True
                    )
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        gateway.reading -= size


def _refuse(limit: int) -> bytes:
    raise _too_long(limit)


def _too_long(limit: int) -> Refusal:
    return Refusal(413, "request_too_large", f"a body has at most {limit:,} bytes", close=True)
