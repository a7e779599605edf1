"""State of one worker: settings, pool, keyring, inline guard and request observers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from agentguard.backends.base import Backend, Headers
from agentguard.backends.config import BackendsOptions
from agentguard.resilience.clock import MONOTONIC, Clock
from agentguard_server.proxy.auth.authorization import Keyring
from agentguard_server.proxy.config.schema import ProxySettings
from agentguard_server.proxy.hooks import ProxyRequest, RequestInterceptor, RequestObserver
from agentguard_server.proxy.requests.request_parser import BodyMemory
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
    """Request in flight."""

    def cancel(self, reason: str = "ending") -> None:
        """Cancel the request with an error of its API."""
        ...


class AppState:
    """State of one worker; use it in one event loop.

    Args:
        settings: the configuration.
        pool: replicas that serve requests.
        interceptor: inline guard; None makes a pure gateway.
        request_observers: observers of completed requests.
        admin_app: application for health, metrics and status; without one, these paths answer 404.
        max_captured_bytes: number of bytes of a response that the observers need; 0 if they need none.
        build_trace_headers: function that returns the trace headers for the endpoint; None without tracing.
        clock: clock for deadlines and measurements.

    Attributes:
        keyring: configured API keys; None if no keys are configured.
        is_draining: True while the worker drains: it rejects new requests.
        in_flight: requests in flight.
        worker: number of this process, from 0.
        body_memory: memory of incomplete bodies.
        needs_prefix_digest: True if the load balancing policy reads the digest of a prompt's prefix.
        response_affinity: replicas of stored responses.
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
        self.request_observers, self.max_captured_bytes = request_observers, max_captured_bytes
        self.admin_app, self.clock = admin_app, clock
        self.build_trace_headers = build_trace_headers
        self.keyring = Keyring.from_settings(settings)
        self.is_draining = False
        self.in_flight: set[InFlightRequest] = set()
        self.worker = 0
        self.body_memory = BodyMemory()
        self.needs_prefix_digest = settings.backends.load_balancing.needs_prefix_digest
        self.response_affinity = ResponseAffinity()

    def apply_settings(
        self, settings: ProxySettings, *, keyring: Keyring | None, interceptor: RequestInterceptor | None
    ) -> None:
        """Replace the settings for requests that begin from now on."""
        self.settings, self.keyring, self.interceptor = settings, keyring, interceptor
        self.needs_prefix_digest = settings.backends.load_balancing.needs_prefix_digest

    @property
    def in_flight_count(self) -> int:
        """Return the number of requests in flight."""
        return len(self.in_flight)
