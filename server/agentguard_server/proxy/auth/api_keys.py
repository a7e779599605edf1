"""API keys: tenants, scopes and limits of clients.

The proxy stores only SHA-256 hashes. Generated keys hold 256 random bits, so a slow hash would add no
security. A lookup by hash leaks no useful timing: to choose the hash, an attacker would need a preimage.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable

from agentguard_server.proxy.auth.rate_limits import SharedKeyLimit, SharedRateLimits
from agentguard_server.proxy.config.schema import KeyLimits, KeyOptions, Scope

KEY_PREFIX = "ag-"
_MAX_KEY_BYTES = 512


class Caller:
    """Client of one API key with its request counts; each worker has one per key.

    Args:
        options: options of the key; None for an anonymous client.
        limit_share: share of the key's limits that this worker enforces.
    """

    __slots__ = (
        "_max_concurrent",
        "_refilled_at",
        "_requests_per_minute",
        "_tokens",
        "in_flight",
        "name",
        "scopes",
        "tenant",
    )

    def __init__(self, options: KeyOptions | None = None, *, limit_share: float = 1.0) -> None:
        self.name = options.name if options else ""
        self.tenant = options.tenant if options else ""
        self.scopes: frozenset[Scope] = frozenset(options.scopes if options else ("call", "read", "admin"))
        limits = options.limits if options else KeyLimits()
        self._max_concurrent = _scale_limit(limits.max_concurrent, limit_share)
        self._requests_per_minute = _scale_limit(limits.requests_per_minute, limit_share)
        self._tokens, self._refilled_at = float(self._requests_per_minute or 0), 0.0
        self.in_flight = 0

    def acquire(self, now: float) -> float | None:
        """Begin a request if the limits allow it.

        Args:
            now: clock time in seconds.

        Returns:
            None if the request is accepted; call `release` at its end. Otherwise the seconds to wait
            before a retry.
        """
        if self._max_concurrent is not None and self.in_flight >= self._max_concurrent:
            return 1.0
        if self._requests_per_minute is not None:
            gained = (now - self._refilled_at) * self._requests_per_minute / 60
            self._tokens, self._refilled_at = (
                min(float(self._requests_per_minute), self._tokens + gained),
                now,
            )
            if self._tokens < 1:
                return (1 - self._tokens) * 60 / self._requests_per_minute
            self._tokens -= 1
        self.in_flight += 1
        return None

    def release(self) -> None:
        """End an accepted request."""
        self.in_flight -= 1

    def restore(self, previous: Caller) -> None:
        """Continue with the counts that the same key had before a reload."""
        self._tokens, self._refilled_at = min(self._tokens, previous._tokens), previous._refilled_at


class SharedLimitCaller(Caller):
    """Client whose limits apply across all workers of the machine.

    Args:
        options: options of the key.
        shared_limit: counters of the key that all workers share.
    """

    __slots__ = ("_shared_limit",)

    def __init__(self, options: KeyOptions, shared_limit: SharedKeyLimit) -> None:
        super().__init__(options)
        self._shared_limit = shared_limit

    def acquire(self, now: float) -> float | None:
        """Begin a request; see `Caller.acquire`. All workers must use the same clock."""
        most, quota = self._max_concurrent, self._shared_limit
        if most is not None and not quota.acquire(most):
            return 1.0
        if self._requests_per_minute is not None and (
            after := quota.take_token(now, self._requests_per_minute)
        ):
            if most is not None:
                quota.release()
            return after
        self.in_flight += 1
        return None

    def release(self) -> None:
        """End an accepted request; see `Caller.release`."""
        self.in_flight -= 1
        if self._max_concurrent is not None:
            self._shared_limit.release()

    def restore(self, previous: Caller) -> None:
        """Do nothing: the shared counters survive a reload."""


class Keyring:
    """Configured API keys.

    Args:
        keys: configuration of the keys.
        limit_share: share of the limits that this worker enforces without ``rate_limits``.
        rate_limits: counters that all workers of the machine share; by default each worker enforces its
            share.
    """

    def __init__(
        self,
        keys: Iterable[KeyOptions],
        *,
        limit_share: float = 1.0,
        rate_limits: SharedRateLimits | None = None,
    ) -> None:
        digests = ((bytes.fromhex(key.hash.partition(":")[2]), key) for key in keys)
        self._callers = {
            digest: (digest, _create_caller(key, digest, limit_share, rate_limits)) for digest, key in digests
        }

    @classmethod
    def from_options(
        cls,
        keys: tuple[KeyOptions, ...] | None,
        *,
        limit_share: float = 1.0,
        rate_limits: SharedRateLimits | None = None,
    ) -> Keyring | None:
        """Create a keyring; return None if no keys are configured, so that the proxy accepts all clients."""
        return None if keys is None else cls(keys, limit_share=limit_share, rate_limits=rate_limits)

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

    def restore(self, previous: Keyring) -> None:
        """Continue with the counts from before a reload, for keys that exist in both keyrings."""
        for digest, caller in self._callers.values():
            if (old := previous._callers.get(digest)) is not None:
                caller.restore(old[1])


def generate_key() -> tuple[str, str]:
    """Return a new key and its hash for the configuration."""
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    return key, f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def _create_caller(
    key: KeyOptions, digest: bytes, limit_share: float, rate_limits: SharedRateLimits | None
) -> Caller:
    limits = key.limits
    limited = limits.max_concurrent is not None or limits.requests_per_minute is not None
    quota = rate_limits.find_or_create(digest) if rate_limits is not None and limited else None
    return Caller(key, limit_share=limit_share) if quota is None else SharedLimitCaller(key, quota)


def _scale_limit(limit: int | None, share: float) -> int | None:
    return None if limit is None else max(1, round(limit * share))


ANONYMOUS = Caller()
"""Client of all requests if no keys are configured."""
