"""Request of the administration: read it, check its key, and pass it to the admin app by ASGI."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from agentguard_server.proxy.auth.authorization import authorize
from agentguard_server.proxy.errors import ProxyError
from agentguard_server.proxy.http.headers import split_request_headers
from agentguard_server.proxy.http.request_cycle import RequestCycle
from agentguard_server.proxy.requests.request_parser import ClientDisconnected, read_body, take_buffered_body
from agentguard_server.proxy.requests.response_writer import ResponseWriter
from agentguard_server.proxy.routes import Route
from agentguard_server.proxy.state import AppState, Receive


async def serve_admin_request(
    app_state: AppState, cycle: RequestCycle, *, route: Route, request_id: str
) -> None:
    """Pass a request to the admin app; all paths but those for health checks and browsers require a key."""
    scope = cycle.build_scope()
    limits = app_state.settings.limits
    try:
        _, proxy_headers = split_request_headers(cycle.headers, forward_api_key=False)
        if route.kind != "open":
            scope["agentguard.caller"] = authorize(
                app_state.keyring,
                route,
                cycle.method,
                cycle.headers,
                proxy_headers,
                allow_unauthenticated=app_state.settings.listen.allow_unauthenticated,
            )
        if app_state.admin_app is None:
            raise ProxyError(404, "not_found", "the proxy has no resource at this path")
        body = take_buffered_body(cycle, limits, proxy_headers.get(b"content-length"))
        if body is None:
            body = await read_body(cycle, limits, app_state.body_memory)
    except ProxyError as refusal:
        if cycle.linger_for_body():
            refusal.closes_connection = True
        return await ResponseWriter(cycle, route, request_id, clock=app_state.clock).send_error(refusal)
    except ClientDisconnected:
        return None
    return await app_state.admin_app(scope, _replay_body(body, cycle.receive), cycle.send)


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` of ASGI that begins with a body that was already read."""
    is_sent = False

    async def receive_body() -> MutableMapping[str, Any]:
        nonlocal is_sent
        if is_sent:
            return await receive()
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_body
