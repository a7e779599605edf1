"""What the application works with: the pool, the keys, who guards and who is told; exchanged on a reload."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from agentguard.backends.base import Backend, Headers
from agentguard.resilience.clock import MONOTONIC, Clock
from agentguard_server.proxy.auth.api_keys import Keyring
from agentguard_server.proxy.config.schema import ProxySettings
from agentguard_server.proxy.hooks import ProxyRequest, RequestInterceptor, RequestObserver
from agentguard_server.proxy.requests.response_affinity import ResponseAffinity

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class InFlightRequest(Protocol):
    """A request that is under way."""

    def end(self, reason: str = "ending") -> None:
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
        by_prefix: whether a policy wants to know how prompts begin.
        holders: which replica has which stored response.
    """

    def __init__(
        self,
        settings: ProxySettings,
        pool: Backend,
        *,
        guarding: RequestInterceptor | None = None,
        recorders: tuple[RequestObserver, ...] = (),
        admin: App | None = None,
        capture_bytes: int = 0,
        upstream: Callable[[ProxyRequest], Headers] | None = None,
        clock: Clock = MONOTONIC,
    ) -> None:
        self.settings, self.pool, self.guarding = settings, pool, guarding
        self.recorders, self.admin, self.capture_bytes, self.clock = recorders, admin, capture_bytes, clock
        self.upstream = upstream
        self.keys = Keyring.of(settings.keys)
        self.draining = False
        self.live: set[InFlightRequest] = set()
        self.worker = 0
        self.reading = 0
        self.by_prefix = _by_prefix(settings)
        self.holders = ResponseAffinity()

    def take(
        self, settings: ProxySettings, *, keys: Keyring | None, guarding: RequestInterceptor | None
    ) -> None:
        """Other settings hold from now on, for requests that have not begun."""
        self.settings, self.keys, self.guarding = settings, keys, guarding
        self.by_prefix = _by_prefix(settings)

    @property
    def inflight(self) -> int:
        """Requests of model APIs that are under way."""
        return len(self.live)


def _by_prefix(settings: ProxySettings) -> bool:
    return getattr(settings.backends.policy, "name", "") == "prefix"
