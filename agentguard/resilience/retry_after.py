"""When a server says that it may be asked again: Retry-After (RFC 9110, 10.2.3) and its relatives.

What comes from outside is read with care: seconds, an HTTP date, nonsense, or a number that no one would
wait for. The caller clamps the result to its deadline; see `retry`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

DO_NOT_RETRY = -1.0
"""Do not try again: what a negative pushback means in gRPC (proposal A6)."""

_MAX_LENGTH = 128
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_INFINITY = re.compile(r"([+-]?)inf(?:inity)?", re.IGNORECASE)


def parse_retry_after(
    value: str | None, *, date: str | None = None, wall_time: float | None = None
) -> float | None:
    """Read the value of a Retry-After header.

    Args:
        value: the header's value, or None if there was none.
        date: the response's Date header; a date in ``value`` is measured from it, so that the server's clock
            is compared with itself.
        wall_time: wall-clock time in seconds since 1970, used where ``date`` does not help; default: now.

    Returns:
        Seconds to wait, at least 0 and possibly ``inf``; `STOP` if the value is negative; None if there is
        none or it can't be read (NaN, nonsense), in which case the caller's own backoff holds.
    """
    text = (value or "").strip()
    if not text or len(text) > _MAX_LENGTH:
        return None
    if _NUMBER.fullmatch(text) or _INFINITY.fullmatch(text):
        return _normalize_seconds(float(text))
    then = _parse_http_date(text)
    if then is None:
        return None
    sent = _parse_http_date(date) if date else None
    if sent is None:
        sent = time.time() if wall_time is None else wall_time
    return max(0.0, then - sent)


def parse_pushback(headers: Mapping[str, str], *, wall_time: float | None = None) -> float | None:
    """Read what response headers (names in lower case) say about another try; see `parse_retry_after`.

    ``x-should-retry: false`` stops, ``retry-after-ms`` is finer than ``retry-after`` and goes before it (both
    are sent by OpenAI-compatible providers).
    """
    if headers.get("x-should-retry", "").strip().lower() == "false":
        return DO_NOT_RETRY
    text = headers.get("retry-after-ms", "").strip()
    if len(text) <= _MAX_LENGTH and _NUMBER.fullmatch(text):
        return _normalize_seconds(float(text) / 1000)
    return parse_retry_after(headers.get("retry-after"), date=headers.get("date"), wall_time=wall_time)


def _normalize_seconds(number: float) -> float:
    return DO_NOT_RETRY if number < 0 else number


def _parse_http_date(text: str) -> float | None:
    """Seconds since 1970 of an HTTP date in any of its three forms, None if it is none."""
    if len(text) > _MAX_LENGTH:
        return None
    try:
        moment: datetime = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError, IndexError):
        return None
