"""What the application works with: the pool, the keys, who guards and who is told; exchanged on a reload."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from agentguard.backends.base import Backend, Headers
from agentguard.backends.config import BackendsOptions
from agentguard.resilience.clock import MONOTONIC, Clock
from agentguard_server.proxy.auth.api_keys import Keyring
from agentguard_server.proxy.config.schema import ProxySettings
from agentguard_server.proxy.hooks import ProxyRequest, RequestInterceptor, RequestObserver
from agentguard_server.proxy.requests.response_affinity import ResponseAffinity

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class BackendPool(Backend, Protocol):
    """Replicas behind the proxy: `agentguard.backends.pool.Pool`."""

    @property
    def options(self) -> BackendsOptions:
        """Return the section ``backends`` with the current replicas."""
        ...


class InFlightRequest(Protocol):
    """A request that is under way."""

    def cancel(self, reason: str = "ending") -> None:
        """End it early, with an error of its API."""
        ...


class AppState:
    """One worker's state; everything in it lives in one event loop.

    Args:
        settings: the configuration.
        pool: who answers requests.
        guarding: who guards runs; None makes a pure gateway.
        recorders: who is told of each request.
        admin: answers what is no model API: health, metrics, state; None answers 404 there.
        capture_bytes: of an answer that recorders want to see; 0 if none of them does.
        upstream: gives the headers that tell a request's trace to the endpoint; None if nobody traces.
        clock: of deadlines and figures.

    Attributes:
        draining: whether it is about to end: nothing new is begun.
        live: the requests that are under way.
        worker: number of this process, from 0 on.
        reading: bytes of bodies that are not whole yet.
        needs_prefix_digest: True if the load balancing policy reads the digest of a prompt's prefix.
        holders: which replica has which stored response.
    """

    def __init__(
        self,
        settings: ProxySettings,
        pool: BackendPool,
        *,
        interceptor: RequestInterceptor | None = None,
        request_observers: tuple[RequestObserver, ...] = (),
        admin_app: AsgiApp | None = None,
        max_captured_bytes: int = 0,
        build_trace_headers: Callable[[ProxyRequest], Headers] | None = None,
        clock: Clock = MONOTONIC,
    ) -> None:
        self.settings, self.pool, self.interceptor = settings, pool, interceptor
        self.request_observers, self.admin_app, self.max_captured_bytes, self.clock = (
            request_observers,
            admin_app,
            max_captured_bytes,
            clock,
        )
        self.build_trace_headers = build_trace_headers
        self.keyring = Keyring.from_options(settings.keys)
        self.is_draining = False
        self.in_flight: set[InFlightRequest] = set()
        self.worker = 0
        self.buffered_bytes = 0
        self.needs_prefix_digest = settings.backends.load_balancing.needs_prefix_digest
        self.response_affinity = ResponseAffinity()

    def apply_settings(
        self, settings: ProxySettings, *, keyring: Keyring | None, interceptor: RequestInterceptor | None
    ) -> None:
        """Other settings hold from now on, for requests that have not begun."""
        self.settings, self.keyring, self.interceptor = settings, keyring, interceptor
        self.needs_prefix_digest = settings.backends.load_balancing.needs_prefix_digest

    @property
    def in_flight_count(self) -> int:
        """Requests of model APIs that are under way."""
        return len(self.in_flight)
