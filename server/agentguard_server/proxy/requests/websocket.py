"""WebSocket pass-through, such as OpenAI's Realtime API: bytes in both directions, unchanged."""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import parse_qs

from agentguard.backends.base import BackendRequest, Headers, Response
from agentguard.backends.http.websocket_tunnel import WebSocketTunnel
from agentguard.errors import BackendError
from agentguard.resilience.deadline import Deadline
from agentguard_server.proxy.errors import ProxyError
from agentguard_server.proxy.http.headers import HeaderPairs
from agentguard_server.proxy.http.request_cycle import RequestCycle
from agentguard_server.proxy.requests import request_parser
from agentguard_server.proxy.requests.response_writer import ResponseWriter
from agentguard_server.proxy.routes import BASE_PATH
from agentguard_server.proxy.state import AppState

_HIGH_WATER_BYTES: Final = 262_144
_KEY_PROTOCOL: Final = "openai-insecure-api-key."
_REQUIRED_VERSION: Final = b"13"


def _build_tunnel_request(
    target: str, headers: Headers, query: bytes, *, removes_keys: bool
) -> BackendRequest:
    """Build the request for the pool.

    Args:
        target: path and query below the base URL.
        headers: headers to forward.
        query: query as the client sent it; its ``model`` decides the replica.
        removes_keys: True to remove keys from the list of subprotocols, where browsers send them.

    Raises:
        ProxyError: 400 if this is not a request for a WebSocket.
    """
    versions = [value for name, value in headers if name == b"sec-websocket-version"]
    keys = [value for name, value in headers if name == b"sec-websocket-key"]
    if versions != [_REQUIRED_VERSION] or len(keys) != 1:
        raise ProxyError(400, "invalid_request", "a WebSocket needs one Sec-WebSocket-Key and version 13")
    models = parse_qs(query.decode("latin-1")).get("model", [])
    if len(models) > 1:
        raise ProxyError(400, "invalid_request", "the query names more than one model")
    return BackendRequest(
        target=target,
        method="GET",
        headers=_remove_keys(headers) if removes_keys else headers,
        idempotent=False,
        model=models[0] if models else "",
        is_tunnel=True,
    )


def _remove_keys(headers: Headers) -> Headers:
    kept = []
    for name, value in headers:
        if name == b"sec-websocket-protocol":
            protocols = [one.strip() for one in value.decode("latin-1").split(",")]
            value = ", ".join(one for one in protocols if not one.startswith(_KEY_PROTOCOL)).encode("latin-1")
        if value:
            kept.append((name, value))
    return tuple(kept)


async def relay_websocket(
    app_state: AppState,
    cycle: RequestCycle,
    writer: ResponseWriter,
    headers: HeaderPairs,
    *,
    is_metered: bool,
) -> None:
    """Send a request for a WebSocket to the endpoint, and relay until one side ends.

    Args:
        app_state: the worker's state.
        cycle: request of the client.
        writer: writer of the response.
        headers: headers to forward.
        is_metered: True if the client's key has token limits or a budget.

    Raises:
        ProxyError: 400 or 405 if the request is not valid, 403 if the key is metered.
        ResilienceError: the endpoint did not switch.
    """
    if is_metered:
        raise ProxyError(403, "not_metered", "a key with token limits or a budget cannot use WebSockets")
    request_parser.require_forwardable(cycle)
    request = _build_tunnel_request(
        request_parser.build_target(cycle)[len(BASE_PATH) :],
        tuple(headers),
        cycle.query_string,
        removes_keys=app_state.keyring is not None,
    )
    response = await app_state.pool.send(request, Deadline.never())
    if not isinstance(response, Response) or response.tunnel is None:
        raise BackendError("the endpoint did not switch to WebSocket", stage="sent")
    if app_state.interceptor is not None:
        app_state.interceptor.counts.unsupported += 1
    idle_timeout_s = app_state.settings.limits.websocket_idle_timeout_s
    relay = WebSocketRelay(cycle, response.tunnel, idle_timeout_s=idle_timeout_s)
    await relay.run(writer.start_tunnel(response))
    writer.is_complete = True


class WebSocketRelay:
    """Relay between a client and an endpoint after both have switched.

    Args:
        cycle: request of the client.
        tunnel: connection to the endpoint.
        idle_timeout_s: seconds without bytes in either direction after which the relay ends.
    """

    def __init__(self, cycle: RequestCycle, tunnel: WebSocketTunnel, *, idle_timeout_s: float) -> None:
        self._cycle, self._tunnel, self._idle_timeout_s = cycle, tunnel, idle_timeout_s
        self._parts: list[bytes] = []
        self._size = 0
        self._arrived = asyncio.Event()
        self._last_at = asyncio.get_running_loop().time()

    async def run(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Answer the client with the switch, and relay until one side ends or both are idle."""
        try:
            if not self._cycle.start_tunnel(headers, self._receive_from_client):
                return
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._send_to_endpoint()),
                    group.create_task(self._send_to_client()),
                    group.create_task(self._watch_idle()),
                ]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
            self._cycle.end_tunnel()
        finally:
            self._tunnel.close()

    def _receive_from_client(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        self._arrived.set()
        if self._size > _HIGH_WATER_BYTES:
            self._cycle.pause_reading()

    async def _send_to_endpoint(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            data, self._parts, self._size = b"".join(self._parts), [], 0
            self._touch()
            try:
                await self._tunnel.send(data)
            except OSError:
                return
            self._cycle.resume_reading()

    async def _send_to_client(self) -> None:
        while data := await self._tunnel.receive():
            self._touch()
            await self._cycle.send_tunnel_data(data)

    async def _watch_idle(self) -> None:
        loop = asyncio.get_running_loop()
        while (left := self._last_at + self._idle_timeout_s - loop.time()) > 0:
            await asyncio.sleep(left)

    def _touch(self) -> None:
        self._last_at = asyncio.get_running_loop().time()
