"""Health and metrics of a vLLM server, read over HTTP."""

from __future__ import annotations

import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Final, cast

from agentguard.errors import JudgeError
from agentguard.loopback import is_loopback

_METRIC_LINE: Final = re.compile(r"^(vllm:\w+)(?:\{[^}]*\})? ([-+.\deE]+)$", re.MULTILINE)
_PROGRESS_COUNTERS: Final = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:iteration_tokens_total_count",
)
"""Counters that grow while the engine works: tokens of requests, and engine steps."""

_MAX_PAGE_BYTES: Final = 8_000_000
_TIMEOUT_S: Final = 10.0
_HEALTH_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWork:
    """Counters of a server, since its start or between two readings.

    Attributes:
        prompt_tokens: prompt tokens of all requests.
        cached_tokens: prompt tokens from the prefix cache.
        generated_tokens: generated tokens.
        cache_queries, cache_hits: tokens that the server looked up in the prefix cache, and found.
    """

    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    generated_tokens: float = 0.0
    cache_queries: float = 0.0
    cache_hits: float = 0.0

    @property
    def computed_tokens(self) -> float:
        """Prompt tokens that were not in the prefix cache."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def hit_rate(self) -> float:
        """Share of the looked-up tokens that the cache contained; 0 without look-ups."""
        return self.cache_hits / self.cache_queries if self.cache_queries else 0.0

    def __sub__(self, before: ServerWork) -> ServerWork:
        return ServerWork(**{name: getattr(self, name) - getattr(before, name) for name in self.__slots__})


def fetch_counters(root: str) -> Mapping[str, float]:
    """Fetch every ``vllm:`` counter and gauge by name, summed over its labels.

    Args:
        root: URL of the server without ``/v1``.

    Raises:
        JudgeError: the server has no metrics page, or cannot be reached.
    """
    try:
        with _open_url(f"{root}/metrics", timeout_s=_TIMEOUT_S) as response:
            text = response.read(_MAX_PAGE_BYTES).decode(errors="replace")
    except urllib.error.HTTPError as error:
        raise JudgeError(
            f"{root}/metrics returned status {error.code}; only vLLM's metrics are supported"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise JudgeError(f"{root}/metrics cannot be read: {reason}") from None
    return sum_counters(text)


def sum_counters(text: str) -> Mapping[str, float]:
    """Sum the counters of a metrics page over their labels; NaN and infinities are skipped."""
    sums: dict[str, float] = {}
    for name, value in _METRIC_LINE.findall(text):
        try:
            sums[name] = sums.get(name, 0.0) + float(value)
        except ValueError:
            continue
    return sums


def fetch_work(root: str) -> ServerWork:
    """Fetch the server's counters since its start. Raises JudgeError as `fetch_counters` does."""
    counters = fetch_counters(root)
    return ServerWork(
        prompt_tokens=counters.get("vllm:prompt_tokens_total", 0.0),
        cached_tokens=counters.get("vllm:prompt_tokens_cached_total", 0.0),
        generated_tokens=counters.get("vllm:generation_tokens_total", 0.0),
        cache_queries=counters.get("vllm:prefix_cache_queries_total", 0.0),
        cache_hits=counters.get("vllm:prefix_cache_hits_total", 0.0),
    )


def fetch_progress(root: str) -> float | None:
    """Fetch a number that grows while the engine works; None if the server does not report it."""
    try:
        counters = fetch_counters(root)
    except JudgeError:
        return None
    known = [counters[name] for name in _PROGRESS_COUNTERS if name in counters]
    return sum(known) if known else None


def is_healthy(url: str) -> bool:
    """Return whether the server answers a GET of a URL with 200 within 5 s."""
    try:
        with _open_url(url, timeout_s=_HEALTH_TIMEOUT_S) as response:
            return int(response.status) == 200
    except (urllib.error.URLError, OSError, ValueError):
        return False


def _open_url(url: str, *, timeout_s: float) -> HTTPResponse:
    """GET a URL; for a loopback host, ignore the proxies of the environment (``http_proxy``).

    Raises:
        OSError: the server cannot be reached, or answers with an error (``urllib.error.HTTPError``).
        ValueError: the URL is not valid.
    """
    host = urllib.parse.urlsplit(url).hostname or ""
    handlers = [urllib.request.ProxyHandler({})] if is_loopback(host) else []
    opener = urllib.request.build_opener(*handlers)
    return cast(HTTPResponse, opener.open(url, timeout=timeout_s))
