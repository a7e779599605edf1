"""Authorisation of requests: deny by default, before any other part of a request is processed.

An API key gives a client its tenant, scopes and limits. The proxy stores only SHA-256 hashes of keys.
Generated keys have 256 random bits, so a slow hash would add no security. The time of a lookup by hash
reveals nothing useful: to choose the hash, an attacker would need a preimage.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from agentguard.loopback import is_loopback
from agentguard_server.proxy.auth.client_limits import ClientLimit, create_limits
from agentguard_server.proxy.auth.shared_counters import SharedCounters
from agentguard_server.proxy.config.schema import ClientLimits, KeyOptions, ProxySettings, Scope
from agentguard_server.proxy.errors import ProxyError
from agentguard_server.proxy.http.headers import HeaderPairs, extract_api_key
from agentguard_server.proxy.routes import Route

if TYPE_CHECKING:
    from agentguard.trajectory.model import Usage
    from agentguard_server.proxy.auth.spending_ledger import SpendingLedger

KEY_PREFIX = "ag-"
_MAX_KEY_BYTES = 512
_READ_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_SITE_HEADERS: Final = frozenset({b"host", b"origin", b"sec-fetch-site"})
_trusted_values: dict[bytes, bool] = {}
_MAX_CACHED_VALUES: Final = 256


class Caller:
    """Client of one API key, in one worker.

    Args:
        options: options of the key; None for an anonymous client.
        limits: limits of the key and of its tenant.

    Attributes:
        name: name of the key; empty for an anonymous client.
        tenant: tenant of the key; empty for an anonymous client.
        scopes: scopes of the key; an anonymous client has all.
        in_flight: number of accepted requests in flight.
        is_metered: True if a limit counts the tokens that requests use.
        has_budget: True if the key or its tenant has a budget.
    """

    __slots__ = ("_limits", "has_budget", "in_flight", "is_metered", "name", "scopes", "tenant")

    def __init__(self, options: KeyOptions | None = None, *, limits: tuple[ClientLimit, ...] = ()) -> None:
        self.name = options.name if options else ""
        self.tenant = options.tenant if options else ""
        self.scopes: frozenset[Scope] = frozenset(options.scopes if options else ("call", "read", "admin"))
        self._limits, self.is_metered = limits, any(limit.is_metered for limit in limits)
        self.has_budget = any(limit.has_budget for limit in limits)
        self.in_flight = 0

    def acquire(self, now: float) -> None:
        """Begin a request; call `release` at its end.

        Args:
            now: time in seconds, of a clock that all workers share.

        Raises:
            ProxyError: 429 if a limit is reached. The request is then not counted.
        """
        acquired = 0
        try:
            for limit in self._limits:
                limit.acquire_slot()
                acquired += 1
            for limit in self._limits:
                limit.check(now)
        except ProxyError:
            for limit in self._limits[:acquired]:
                limit.release_slot()
            raise
        for limit in self._limits:
            limit.count_request(now)
        self.in_flight += 1

    def release(self) -> None:
        """End an accepted request."""
        self.in_flight -= 1
        for limit in self._limits:
            limit.release_slot()

    def charge(self, now: float, usage: Usage) -> None:
        """Count the tokens of a request, and their cost, at clock time ``now``."""
        for limit in self._limits:
            limit.charge(now, usage)


class Keyring:
    """Configured API keys.

    Args:
        keys: configuration of the keys.
        tenants: limits of tenants, by name; the keys of a tenant share them.
        counters: counters that all workers of the machine share; by default this worker's own counters.
        spending: ledger of the budgets; None without budgets.
    """

    def __init__(
        self,
        keys: Iterable[KeyOptions],
        *,
        tenants: Mapping[str, ClientLimits] = MappingProxyType({}),
        counters: SharedCounters | None = None,
        spending: SpendingLedger | None = None,
    ) -> None:
        counters = counters or SharedCounters()
        tenant_limits = {
            name: create_limits(f"tenant:{name}", limits, counters, spending)
            for name, limits in tenants.items()
        }
        self._callers: dict[bytes, tuple[bytes, Caller]] = {}
        for key in keys:
            digest = bytes.fromhex(key.hash.partition(":")[2])
            limits = create_limits(f"key:{key.name}", key.limits, counters, spending)
            self._callers[digest] = digest, Caller(key, limits=limits + tenant_limits.get(key.tenant, ()))

    @classmethod
    def from_settings(
        cls,
        settings: ProxySettings,
        *,
        counters: SharedCounters | None = None,
        spending: SpendingLedger | None = None,
    ) -> Keyring | None:
        """Create a keyring; return None if no keys are configured, so that the proxy accepts all clients."""
        if settings.keys is None:
            return None
        return cls(settings.keys, tenants=settings.tenants, counters=counters, spending=spending)

    def find(self, key: bytes) -> Caller | None:
        """Return the client of a key; None if the key is unknown."""
        if not key or len(key) > _MAX_KEY_BYTES:
            return None
        digest = hashlib.sha256(key).digest()
        known = self._callers.get(digest)
        return known[1] if known is not None and hmac.compare_digest(known[0], digest) else None

    def find_by_name(self, name: str) -> tuple[bytes, Caller] | None:
        """Return hash and client of the key with this name; None if no key has it."""
        return next((held for held in self._callers.values() if held[1].name == name), None)


def generate_key() -> tuple[str, str]:
    """Return a new key and its hash for the configuration."""
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    return key, f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


ANONYMOUS = Caller()
"""Client of all requests if no keys are configured."""


def authorize(
    keyring: Keyring | None,
    route: Route,
    method: str,
    headers: HeaderPairs,
    proxy_headers: dict[bytes, bytes],
    *,
    allow_unauthenticated: bool,
) -> Caller:
    """Return the client of a request if the client may send it.

    Raises:
        ProxyError: 401 without a known key; 403 if the key does not have the scope; 403 for a request from a
            web site if no keys are configured.
    """
    if keyring is None:
        if not allow_unauthenticated:
            _require_local_site(headers)
        return ANONYMOUS
    caller = keyring.find(extract_api_key(proxy_headers))
    if caller is None:
        raise ProxyError(
            401, "invalid_api_key", "an API key of this proxy is required: Authorization: Bearer ag-…"
        )
    scope = _select_scope(method, route)
    if scope not in caller.scopes and not (scope == "read" and "admin" in caller.scopes):
        raise ProxyError(403, "insufficient_scope", f"this key does not have the scope {scope}")
    return caller


def _select_scope(method: str, route: Route) -> Scope:
    if route.kind != "admin" or route.api == "guardrail":
        return "call"
    return "read" if method in _READ_METHODS else "admin"


def _require_local_site(headers: HeaderPairs) -> None:
    """Check that a request without a key was sent to a local name, and not by a web site in a browser.

    The owner of a site can set its DNS record to 127.0.0.1 (DNS rebinding), and a page can send forms to any
    address.
    """
    for name, value in headers:
        if name not in _SITE_HEADERS:
            continue
        if name == b"sec-fetch-site":
            if value == b"cross-site":
                raise ProxyError(403, "foreign_site", "the request comes from a page of another site")
        elif not (_trusted_values.get(value) or _is_local(value)):
            raise ProxyError(
                403,
                "foreign_site",
                "without API keys, the proxy serves only requests to a local name of this machine",
            )


def _is_local(value: bytes) -> bool:
    """Return whether a Host or Origin is a loopback name; results are cached, as each request has one."""
    known = _trusted_values.get(value)
    if known is None:
        text = value.decode("latin-1")
        try:
            parts = urlsplit(text if "://" in text else f"//{text}")
            known = parts.hostname is not None and "@" not in text and is_loopback(parts.hostname.rstrip("."))
        except ValueError:
            known = False
        if len(_trusted_values) < _MAX_CACHED_VALUES:
            _trusted_values[value] = known
    return known
