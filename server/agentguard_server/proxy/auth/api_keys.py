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

from agentguard_server.proxy.auth.rate_limits import Quota, Quotas
from agentguard_server.proxy.config.schema import KeyLimits, KeyOptions, Scope

PREFIX = "ag-"
_MOST_BYTES = 512


class Caller:
    """Who asks, with the count of what they ask; one a key and worker.

    Args:
        options: of the key; None for anybody, where there are no keys.
        share: of the key's limits that this worker may give out.
    """

    __slots__ = ("_allowed", "_at", "_concurrent", "_rate", "name", "running", "scopes", "tenant")

    def __init__(self, options: KeyOptions | None = None, *, share: float = 1.0) -> None:
        self.name = options.name if options else ""
        self.tenant = options.tenant if options else ""
        self.scopes: frozenset[Scope] = frozenset(options.scopes if options else ("call", "read", "admin"))
        limits = options.limits if options else KeyLimits()
        self._concurrent = _share(limits.concurrent, share)
        self._rate = _share(limits.requests_per_minute, share)
        self._allowed, self._at = float(self._rate or 0), 0.0
        self.running = 0

    def enter(self, now: float) -> float | None:
        """Begin a request, if the limits allow it.

        Args:
            now: clock time in seconds.

        Returns:
            None if it may go on, and `leave` must follow; else seconds after which to come again.
        """
        if self._concurrent is not None and self.running >= self._concurrent:
            return 1.0
        if self._rate is not None:
            gained = (now - self._at) * self._rate / 60
            self._allowed, self._at = min(float(self._rate), self._allowed + gained), now
            if self._allowed < 1:
                return (1 - self._allowed) * 60 / self._rate
            self._allowed -= 1
        self.running += 1
        return None

    def leave(self) -> None:
        """A request that was let in is over."""
        self.running -= 1

    def inherit(self, before: Caller) -> None:
        """Go on from the counts of the same key before a reload."""
        self._allowed, self._at = min(self._allowed, before._allowed), before._at


class SharedLimitCaller(Caller):
    """A caller whose limits hold over all workers of the machine.

    Args:
        options: of the key.
        quota: what all workers have given out of its limits.
    """

    __slots__ = ("_quota",)

    def __init__(self, options: KeyOptions, quota: Quota) -> None:
        super().__init__(options)
        self._quota = quota

    def enter(self, now: float) -> float | None:
        """As `Caller.enter`; the clock must be the same in all workers."""
        most, quota = self._concurrent, self._quota
        if most is not None and not quota.begin(most):
            return 1.0
        if self._rate is not None and (after := quota.spend(now, self._rate)):
            if most is not None:
                quota.end()
            return after
        self.running += 1
        return None

    def leave(self) -> None:
        """As `Caller.leave`."""
        self.running -= 1
        if self._concurrent is not None:
            self._quota.end()

    def inherit(self, before: Caller) -> None:
        """Nothing is to be done: the counts are where they were."""


class Keyring:
    """The keys that are known.

    Args:
        keys: as they are configured.
        share: of their limits that this worker may give out, where the workers do not count together.
        quotas: what all workers of the machine have given out; each gives out its share if absent.
    """

    def __init__(
        self, keys: Iterable[KeyOptions], *, share: float = 1.0, quotas: Quotas | None = None
    ) -> None:
        digests = ((bytes.fromhex(key.hash.partition(":")[2]), key) for key in keys)
        self._callers = {digest: (digest, _caller(key, digest, share, quotas)) for digest, key in digests}

    @classmethod
    def of(
        cls, keys: tuple[KeyOptions, ...] | None, *, share: float = 1.0, quotas: Quotas | None = None
    ) -> Keyring | None:
        """A ring of configured keys; None where there are none, and everybody is let in."""
        return None if keys is None else cls(keys, share=share, quotas=quotas)

    def find(self, key: bytes) -> Caller | None:
        """Whose key it is; None if nobody's."""
        if not key or len(key) > _MOST_BYTES:
            return None
        digest = hashlib.sha256(key).digest()
        known = self._callers.get(digest)
        return known[1] if known is not None and hmac.compare_digest(known[0], digest) else None

    def named(self, name: str) -> tuple[bytes, Caller] | None:
        """The hash and the caller of the key of that name; None if there is none."""
        return next((held for held in self._callers.values() if held[1].name == name), None)

    def inherit(self, before: Keyring) -> None:
        """Go on from the counts before a reload, for the keys that stayed."""
        for digest, caller in self._callers.values():
            if (old := before._callers.get(digest)) is not None:
                caller.inherit(old[1])


def make() -> tuple[str, str]:
    """A new key and the hash that goes into the configuration."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def _caller(key: KeyOptions, digest: bytes, share: float, quotas: Quotas | None) -> Caller:
    limits = key.limits
    limited = limits.concurrent is not None or limits.requests_per_minute is not None
    quota = quotas.of(digest) if quotas is not None and limited else None
    return Caller(key, share=share) if quota is None else SharedLimitCaller(key, quota)


def _share(limit: int | None, share: float) -> int | None:
    return None if limit is None else max(1, round(limit * share))


ANYBODY = Caller()
"""Who asks where there are no keys."""
