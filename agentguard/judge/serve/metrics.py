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

_LINE: Final = re.compile(r"^(vllm:\w+)(?:\{[^}]*\})? ([-+.\deE]+)$", re.MULTILINE)
_MOST: Final = 8_000_000
_DEADLINE_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Tokens and look-ups of a server, as counted since it started or between two readings.

    Attributes:
        sent: prompt tokens of all requests.
        cached: those of them that came from the prefix cache.
        written: tokens that were generated.
        queries, hits: tokens that were looked for in the prefix cache, and found.
    """

    sent: float = 0.0
    cached: float = 0.0
    written: float = 0.0
    queries: float = 0.0
    hits: float = 0.0

    @property
    def computed(self) -> float:
        """Prompt tokens that the server had to compute."""
        return self.sent - self.cached

    @property
    def hit_rate(self) -> float:
        """Share of the looked-for tokens that were found; 0 where none was looked for."""
        return self.hits / self.queries if self.queries else 0.0

    def __sub__(self, before: Work) -> Work:
        return Work(**{name: getattr(self, name) - getattr(before, name) for name in self.__slots__})


def counters(root: str) -> Mapping[str, float]:
    """Every ``vllm:`` counter and gauge by name, summed over its labels.

    Args:
        root: the server's address without ``/v1``.

    Raises:
        JudgeError: it has no such page, or cannot be reached.
    """
    try:
        with urllib.request.urlopen(f"{root}/metrics", timeout=_DEADLINE_S) as answer:  # noqa: S310
            text = answer.read(_MOST).decode(errors="replace")
    except (urllib.error.URLError, OSError, ValueError):
        raise JudgeError("the endpoint tells no metrics; only vLLM's are read") from None
    return summed(text)


def summed(text: str) -> Mapping[str, float]:
    """The same from the page itself; NaN and infinities are passed over."""
    sums: dict[str, float] = {}
    for name, value in _LINE.findall(text):
        try:
            sums[name] = sums.get(name, 0.0) + float(value)
        except ValueError:
            continue
    return sums


def work(root: str) -> Work:
    """What the server has done since it started. Raises JudgeError as `counters` does."""
    held = counters(root)
    return Work(
        sent=held.get("vllm:prompt_tokens_total", 0.0),
        cached=held.get("vllm:prompt_tokens_cached_total", 0.0),
        written=held.get("vllm:generation_tokens_total", 0.0),
        queries=held.get("vllm:prefix_cache_queries_total", 0.0),
        hits=held.get("vllm:prefix_cache_hits_total", 0.0),
    )
