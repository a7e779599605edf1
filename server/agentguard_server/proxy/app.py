"""The proxy as a plain ASGI application: a path is looked up, and that is all the routing there is."""

from __future__ import annotations

import secrets
from collections.abc import Coroutine, MutableMapping
from typing import Any

from agentguard_server.proxy.auth.authorization import authorize
from agentguard_server.proxy.errors import ProxyError
from agentguard_server.proxy.http.headers import split_request_headers
from agentguard_server.proxy.http.request_cycle import CONNECTION
from agentguard_server.proxy.requests.body import ClientDisconnected, buffered_body, read_body
from agentguard_server.proxy.requests.handler import RequestHandler
from agentguard_server.proxy.requests.response_writer import ResponseWriter
from agentguard_server.proxy.routes import Route, route
from agentguard_server.proxy.state import AppState, Receive, Scope, Send


class App:
    """An ASGI application.

    Args:
        gateway: what it works with; a new one holds for requests that come after it.
    """

    def __init__(self, gateway: AppState) -> None:
        self.gateway = gateway
        self._stem, self._count = secrets.token_hex(4), 0

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Answer one request. Connections that are no HTTP are closed."""
        if scope["type"] != "http":
            return _other(scope, receive, send)
        self._count += 1
        request_id = f"{self._stem}{self._count:06x}"
        found = route(scope["method"], scope["raw_path"])
        if found.kind in ("open", "admin"):
            return self._own(found, scope, receive, send, request_id)
        return RequestHandler(self.gateway, scope, send, route=found, request_id=request_id).run(receive)

    async def _own(self, found: Route, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        """What is no model API: health, figures, state; the key is checked here for all of it but health."""
        gateway = self.gateway
        try:
            _, ours = split_request_headers(scope["headers"], auth=False)
            if found.kind != "open":
                scope["agentguard.caller"] = authorize(gateway, scope, found, ours)
            if gateway.admin is None:
                raise ProxyError(404, "not_found", "there is nothing at this path")
            body = buffered_body(gateway, scope.get(CONNECTION), ours.get(b"content-length"))
            if body is None:
                body = await read_body(gateway, scope.get(CONNECTION), receive)
        except ProxyError as refusal:
            connection = scope.get(CONNECTION)
            if connection is not None and connection.refusing():
                refusal.close = True
            return await ResponseWriter(gateway, send, request_id, found).refuse(refusal)
        except ClientDisconnected:
            return None
        return await gateway.admin(scope, _again(body, receive), send)


def _again(body: bytes, receive: Receive) -> Receive:
    """A body that was read within its limits, for an application that has none of its own."""
    given = False

    async def receiving() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receiving


async def _other(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1003})
    elif scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
