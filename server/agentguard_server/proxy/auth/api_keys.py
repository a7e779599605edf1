"""API keys: tenants, scopes and limits of clients.

The proxy stores only SHA-256 hashes. Generated keys hold 256 random bits, so a slow hash would add no
security. A lookup by hash leaks no useful timing: to choose the hash, an attacker would need a preimage.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from agentguard_server.proxy.auth.client_limit import ClientLimit, create_limits
from agentguard_server.proxy.auth.rate_limits import SharedRateLimits
from agentguard_server.proxy.config.schema import ClientLimits, KeyOptions, ProxySettings, Scope
from agentguard_server.proxy.errors import ProxyError

if TYPE_CHECKING:
    from agentguard.trajectory.model import Usage
    from agentguard_server.proxy.auth.spending_ledger import SpendingLedger

KEY_PREFIX = "ag-"
_MAX_KEY_BYTES = 512


class Caller:
    """Client of one API key; each worker has one per key.

    Args:
        options: options of the key; None for an anonymous client.
        limits: limits of the key and of its tenant.

    Attributes:
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
            ProxyError: 429 if a limit is reached; nothing is counted then.
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
        """Count the tokens that a request used, and their cost."""
        for limit in self._limits:
            limit.charge(now, usage)


class Keyring:
    """Configured API keys.

    Args:
        keys: configuration of the keys.
        tenants: limits of tenants, by name; the keys of a tenant share them.
        rate_limits: counters that all workers of the machine share; by default this worker counts alone.
        spending: ledger of the budgets; None without budgets.
    """

    def __init__(
        self,
        keys: Iterable[KeyOptions],
        *,
        tenants: Mapping[str, ClientLimits] = MappingProxyType({}),
        rate_limits: SharedRateLimits | None = None,
        spending: SpendingLedger | None = None,
    ) -> None:
        counters = rate_limits or SharedRateLimits()
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
        rate_limits: SharedRateLimits | None = None,
        spending: SpendingLedger | None = None,
    ) -> Keyring | None:
        """Create a keyring; return None if no keys are configured, so that the proxy accepts all clients."""
        if settings.keys is None:
            return None
        return cls(settings.keys, tenants=settings.tenants, rate_limits=rate_limits, spending=spending)

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
