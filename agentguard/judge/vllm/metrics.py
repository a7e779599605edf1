"""What a vLLM server counts, read from its ``/metrics`` (the text format of Prometheus).

The counters are the server's own account of its work: prompt tokens that it was sent, and those that it took
from its prefix cache. What lies between is what it computed, whatever a client believes.
"""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agentguard.errors import JudgeError

_METRIC_LINE: Final = re.compile(r"^(vllm:\w+)(?:\{[^}]*\})? ([-+.\deE]+)$", re.MULTILINE)
_MAX_BYTES: Final = 8_000_000
_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWork:
    """Tokens and look-ups of a server, as counted since it started or between two readings.

    Attributes:
        sent: prompt tokens of all requests.
        cached: those of them that came from the prefix cache.
        written: tokens that were generated.
        queries, hits: tokens that were looked for in the prefix cache, and found.
    """

    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    generated_tokens: float = 0.0
    cache_queries: float = 0.0
    cache_hits: float = 0.0

    @property
    def computed_tokens(self) -> float:
        """Prompt tokens that the server had to compute."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def hit_rate(self) -> float:
        """Share of the looked-for tokens that were found; 0 where none was looked for."""
        return self.cache_hits / self.cache_queries if self.cache_queries else 0.0

    def __sub__(self, before: ServerWork) -> ServerWork:
        return ServerWork(**{name: getattr(self, name) - getattr(before, name) for name in self.__slots__})


def fetch_counters(root: str) -> Mapping[str, float]:
    """Every ``vllm:`` counter and gauge by name, summed over its labels.

    Args:
        root: the server's address without ``/v1``.

    Raises:
        JudgeError: it has no such page, or cannot be reached.
    """
    try:
        with urllib.request.urlopen(f"{root}/metrics", timeout=_TIMEOUT_S) as answer:  # noqa: S310
            text = answer.read(_MAX_BYTES).decode(errors="replace")
    except (urllib.error.URLError, OSError, ValueError):
        raise JudgeError("the endpoint tells no metrics; only vLLM's are read") from None
    return sum_counters(text)


def sum_counters(text: str) -> Mapping[str, float]:
    """The same from the page itself; NaN and infinities are passed over."""
    sums: dict[str, float] = {}
    for name, value in _METRIC_LINE.findall(text):
        try:
            sums[name] = sums.get(name, 0.0) + float(value)
        except ValueError:
            continue
    return sums


def fetch_work(root: str) -> ServerWork:
    """What the server has done since it started. Raises JudgeError as `counters` does."""
    held = fetch_counters(root)
    return ServerWork(
        prompt_tokens=held.get("vllm:prompt_tokens_total", 0.0),
        cached_tokens=held.get("vllm:prompt_tokens_cached_total", 0.0),
        generated_tokens=held.get("vllm:generation_tokens_total", 0.0),
        cache_queries=held.get("vllm:prefix_cache_queries_total", 0.0),
        cache_hits=held.get("vllm:prefix_cache_hits_total", 0.0),
    )
