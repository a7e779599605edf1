"""Parser of Retry-After (RFC 9110, 10.2.3) and related headers.

The header may contain seconds, an HTTP date, an absurdly large number or garbage, so it is parsed with care.
The caller clamps the result to its deadline; see `retry`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

DO_NOT_RETRY = -1.0
"""Result that forbids a retry, as a negative pushback does in gRPC (proposal A6)."""

_MAX_LENGTH = 128
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_INFINITY = re.compile(r"([+-]?)inf(?:inity)?", re.IGNORECASE)


def parse_retry_after(
    value: str | None, *, date: str | None = None, wall_time: float | None = None
) -> float | None:
    """Parse the value of a Retry-After header.

    Args:
        value: the header's value; None if the header is absent.
        date: the response's Date header. A date in ``value`` is measured from it, so that the server's clock
            is compared with itself.
        wall_time: wall-clock time in seconds since 1970, used if ``date`` does not help; default: now.

    Returns:
        Seconds to wait, at least 0 and possibly ``inf``; `DO_NOT_RETRY` if the value is negative; None if it
        is absent or malformed, in which case the caller's own backoff applies.
    """
    text = (value or "").strip()
    if not text or len(text) > _MAX_LENGTH:
        return None
    if _NUMBER.fullmatch(text) or _INFINITY.fullmatch(text):
        return _normalize_seconds(float(text))
    retry_at = _parse_http_date(text)
    if retry_at is None:
        return None
    sent_at = _parse_http_date(date) if date else None
    if sent_at is None:
        sent_at = time.time() if wall_time is None else wall_time
    return max(0.0, retry_at - sent_at)


def parse_pushback(headers: Mapping[str, str], *, wall_time: float | None = None) -> float | None:
    """Parse the retry headers of a response (names in lower case); see `parse_retry_after`.

    ``x-should-retry: false`` forbids a retry. ``retry-after-ms`` is more precise than ``retry-after`` and
    takes precedence (OpenAI-compatible providers send both).
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
    """Return the seconds since 1970 of an HTTP date in any of its three forms; None if it is malformed."""
    if len(text) > _MAX_LENGTH:
        return None
    try:
        moment: datetime = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError, IndexError):
        return None
