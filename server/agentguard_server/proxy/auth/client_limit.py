"""Limits of one API key, or of all keys of one tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agentguard_server.proxy.auth.rate_limits import SharedLimitRow, SharedRateLimits
from agentguard_server.proxy.config.schema import ClientLimits
from agentguard_server.proxy.errors import ProxyError

if TYPE_CHECKING:
    from agentguard.trajectory.model import Usage

_CONCURRENCY_RETRY_AFTER_S: Final = 1.0


class ClientLimit:
    """Limits on one row of the shared counters.

    Args:
        limits: configured limits.
        row: counters of the key or tenant.

    Attributes:
        is_metered: True if a limit counts the tokens that requests use.
    """

    __slots__ = ("_max_concurrent", "_requests_per_minute", "_row", "_tokens_per_minute", "is_metered")

    def __init__(self, limits: ClientLimits, row: SharedLimitRow) -> None:
        self._row = row
        self._max_concurrent = _scale_limit(limits.max_concurrent, row.share)
        self._requests_per_minute = _scale_limit(limits.requests_per_minute, row.share)
        self._tokens_per_minute = _scale_limit(limits.tokens_per_minute, row.share)
        self.is_metered = limits.is_metered

    def acquire_slot(self) -> None:
        """Count a request in flight. Raises ProxyError with status 429 at the limit."""
        if self._max_concurrent is not None and not self._row.acquire(self._max_concurrent):
            raise _build_refusal("max_concurrent", _CONCURRENCY_RETRY_AFTER_S)

    def release_slot(self) -> None:
        """End a request in flight."""
        if self._max_concurrent is not None:
            self._row.release()

    def check(self, now: float) -> None:
        """Raise ProxyError with status 429 if a rate allows no request now."""
        if self._requests_per_minute is not None and (
            wait := self._row.requests.compute_wait(now, self._requests_per_minute)
        ):
            raise _build_refusal("requests_per_minute", wait)
        if self._tokens_per_minute is not None and (
            wait := self._row.tokens.compute_wait(now, self._tokens_per_minute)
        ):
            raise _build_refusal("tokens_per_minute", wait)

    def count_request(self, now: float) -> None:
        """Count a request for its rate."""
        if self._requests_per_minute is not None:
            self._row.requests.add(now, self._requests_per_minute)

    def charge(self, now: float, usage: Usage) -> None:
        """Count the tokens that a request used."""
        if self._tokens_per_minute is not None:
            tokens = (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)
            self._row.tokens.add(now, self._tokens_per_minute, tokens)


def create_limits(
    subject: bytes, limits: ClientLimits, counters: SharedRateLimits
) -> tuple[ClientLimit, ...]:
    """Return the limits of a key or tenant; none if nothing is limited."""
    if limits == ClientLimits():
        return ()
    return (ClientLimit(limits, counters.find_or_create(subject)),)


def _build_refusal(limit: str, retry_after_s: float) -> ProxyError:
    return ProxyError(
        429,
        "rate_limit_exceeded",
        f"this key or its tenant has reached its limit {limit}",
        retry_after_s=retry_after_s,
    )


def _scale_limit(limit: int | None, share: float) -> int | None:
    return None if limit is None else max(1, round(limit * share))
