"""The proxy as a plain ASGI application: a path is looked up, and that is all the routing there is."""

from __future__ import annotations

import secrets
from collections.abc import Coroutine, MutableMapping
from typing import Any

from agentguard_server.proxy.auth.authorization import authorize
from agentguard_server.proxy.errors import ProxyError
from agentguard_server.proxy.http.headers import split_request_headers
from agentguard_server.proxy.http.request_cycle import CYCLE_KEY
from agentguard_server.proxy.requests.body import ClientDisconnected, buffered_body, read_body
from agentguard_server.proxy.requests.handler import RequestHandler
from agentguard_server.proxy.requests.response_writer import ResponseWriter
from agentguard_server.proxy.routes import Route, match_route
from agentguard_server.proxy.state import AppState, Receive, Scope, Send


class ProxyApp:
    """An ASGI application.

    Args:
        gateway: what it works with; a new one holds for requests that come after it.
    """

    def __init__(self, app_state: AppState) -> None:
        self.app_state = app_state
        self._id_prefix, self._request_count = secrets.token_hex(4), 0

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Answer one request. Connections that are no HTTP are closed."""
        if scope["type"] != "http":
            return _close_websocket(scope, receive, send)
        self._request_count += 1
        request_id = f"{self._id_prefix}{self._request_count:06x}"
        found = match_route(scope["method"], scope["raw_path"])
        if found.kind in ("open", "admin"):
            return self._serve_admin(found, scope, receive, send, request_id)
        return RequestHandler(self.app_state, scope, send, route=found, request_id=request_id).handle(receive)

    async def _serve_admin(
        self, matched_route: Route, scope: Scope, receive: Receive, send: Send, request_id: str
    ) -> None:
        """What is no model API: health, figures, state; the key is checked here for all of it but health."""
        gateway = self.app_state
        try:
            _, ours = split_request_headers(scope["headers"], forward_api_key=False)
            if matched_route.kind != "open":
                scope["agentguard.caller"] = authorize(
                    gateway.keyring,
                    matched_route,
                    scope["method"],
                    scope["headers"],
                    ours,
                    allow_unauthenticated=gateway.settings.listen.allow_unauthenticated,
                )
            if gateway.admin_app is None:
                raise ProxyError(404, "not_found", "there is nothing at this path")
            body = buffered_body(gateway, scope.get(CYCLE_KEY), ours.get(b"content-length"))
            if body is None:
                body = await read_body(gateway, scope.get(CYCLE_KEY), receive)
        except ProxyError as refusal:
            connection = scope.get(CYCLE_KEY)
            if connection is not None and connection.body_pending():
                refusal.closes_connection = True
            return await ResponseWriter(gateway, send, request_id, matched_route).send_error(refusal)
        except ClientDisconnected:
            return None
        return await gateway.admin_app(scope, _replay_body(body, receive), send)


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """A body that was read within its limits, for an application that has none of its own."""
    given = False

    async def receiving() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receiving


async def _close_websocket(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1003})
    elif scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
