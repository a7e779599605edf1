"""API keys: who asks, what they may do, and how much of it.

Only SHA-256 hashes are kept. A key of ours holds 256 random bits, so that a fast hash is as good as a slow
one (there is nothing to guess), and finding one by its hash tells nobody's clock anything of use: it would
take a preimage to choose the hash that is looked up.
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
    """Who asks, with the count of what they ask; one a key and worker.

    Args:
        options: of the key; None for anybody, where there are no keys.
        share: of the key's limits that this worker may give out.
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
        """Begin a request, if the limits allow it.

        Args:
            now: clock time in seconds.

        Returns:
            None if it may go on, and `leave` must follow; else seconds after which to come again.
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
        """A request that was let in is over."""
        self.in_flight -= 1

    def restore(self, previous: Caller) -> None:
        """Go on from the counts of the same key before a reload."""
        self._tokens, self._refilled_at = min(self._tokens, previous._tokens), previous._refilled_at


class SharedLimitCaller(Caller):
    """A caller whose limits hold over all workers of the machine.

    Args:
        options: of the key.
        quota: what all workers have given out of its limits.
    """

    __slots__ = ("_shared_limit",)

    def __init__(self, options: KeyOptions, shared_limit: SharedKeyLimit) -> None:
        super().__init__(options)
        self._shared_limit = shared_limit

    def acquire(self, now: float) -> float | None:
        """As `Caller.enter`; the clock must be the same in all workers."""
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
        """As `Caller.leave`."""
        self.in_flight -= 1
        if self._max_concurrent is not None:
            self._shared_limit.release()

    def restore(self, previous: Caller) -> None:
        """Nothing is to be done: the counts are where they were."""


class Keyring:
    """The keys that are known.

    Args:
        keys: as they are configured.
        share: of their limits that this worker may give out, where the workers do not count together.
        quotas: what all workers of the machine have given out; each gives out its share if absent.
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
        """A ring of configured keys; None where there are none, and everybody is let in."""
        return None if keys is None else cls(keys, limit_share=limit_share, rate_limits=rate_limits)

    def find(self, key: bytes) -> Caller | None:
        """Whose key it is; None if nobody's."""
        if not key or len(key) > _MAX_KEY_BYTES:
            return None
        digest = hashlib.sha256(key).digest()
        known = self._callers.get(digest)
        return known[1] if known is not None and hmac.compare_digest(known[0], digest) else None

    def find_by_name(self, name: str) -> tuple[bytes, Caller] | None:
        """The hash and the caller of the key of that name; None if there is none."""
        return next((held for held in self._callers.values() if held[1].name == name), None)

    def restore(self, previous: Keyring) -> None:
        """Go on from the counts before a reload, for the keys that stayed."""
        for digest, caller in self._callers.values():
            if (old := previous._callers.get(digest)) is not None:
                caller.restore(old[1])


def generate_key() -> tuple[str, str]:
    """A new key and the hash that goes into the configuration."""
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
"""Who asks where there are no keys."""
