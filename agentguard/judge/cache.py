"""Cache of a judge's answers.

The cache key is a SHA-256 of the run's content, the question, the judge's name and its version. Another text,
order of options, model, prompt or schema gives another key. Errors are not cached. The most recent answers
are in memory. With a store they outlive the process, and the store deletes them with the run. A judge without
its own store uses that of the `VerdictScope` around the call.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from agentguard._bounded_map import BoundedMap
from agentguard.errors import AgentGuardError, ConfigError
from agentguard.judge.base import (
    GeneratedText,
    Judge,
    JudgeAnswer,
    Question,
    TextGenerator,
    VersionedJudge,
    close_judge,
)
from agentguard.judge.content_hash import hash_content, hash_question
from agentguard.judge.llm.multiple_choice import list_options
from agentguard.store.db.rows import Row, VerdictRow, compute_verdict_key
from agentguard.trajectory.model import Trajectory


class VerdictStore(Protocol):
    """Persistent storage of answers; `agentguard.store.Store` is one."""

    def get_verdict(self, key: str, *, tenant: str = "") -> VerdictRow | None:
        """Return the row of a key; None if it does not exist."""
        ...

    def write(self, *rows: Row) -> Any:
        """Write rows without waiting."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Counts of cache hits, cache misses and failed reads of the store."""

    hits: int = 0
    misses: int = 0
    store_errors: int = 0

    def add(self, **increments: int) -> CacheStats:
        """Return the counts plus the increments."""
        return replace(self, **{name: getattr(self, name) + n for name, n in increments.items()})


class VerdictScope:
    """Store of the answers of all cached judges without a store in a ``with`` block, with counts.

    The scope applies to the thread or task of the block, and to work that copies its context variables.

    Args:
        store: store of the answers; None only counts them.
        tenant: owner of the answers in the store.
    """

    def __init__(self, store: VerdictStore | None, *, tenant: str = "") -> None:
        self.store, self.tenant = store, tenant
        self.stats = CacheStats()
        self._lock = threading.Lock()
        self._tokens: list[Token[VerdictScope | None]] = []

    def __enter__(self) -> Self:
        self._tokens.append(_SCOPE.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        _SCOPE.reset(self._tokens.pop())

    def add_stats(self, **increments: int) -> None:
        """Add to the counts."""
        with self._lock:
            self.stats = self.stats.add(**increments)


_SCOPE: ContextVar[VerdictScope | None] = ContextVar("agentguard_verdict_scope", default=None)


def find_tenant() -> str | None:
    """Return the tenant of the `VerdictScope` around the call; None outside of a scope."""
    scope = _SCOPE.get()
    return None if scope is None else scope.tenant


class CachedJudge:
    """Judge that answers repeated questions from a cache.

    A cached answer has ``usage["cached"]``, ``usage["calls"]`` of 0 and ``usage["cached_answers"]`` of 1.

    Args:
        judge: judge that answers on a cache miss.
        version: dependencies of the judge's answers; optional for a `VersionedJudge`.
        store: persistent store of the answers; by default that of the `VerdictScope` around a call.
        tenant: owner of the answers in the store.
        max_entries: maximum of answers in memory.

    Raises:
        ConfigError: the judge has no version and none is given, or ``max_entries`` is negative.
    """

    def __init__(
        self,
        judge: Judge,
        *,
        version: str | None = None,
        store: VerdictStore | None = None,
        tenant: str = "",
        max_entries: int = 4_096,
    ) -> None:
        if version is None and not isinstance(judge, VersionedJudge):
            raise ConfigError(f"judge {judge.name!r} has no version: pass one to CachedJudge")
        if max_entries < 0:
            raise ConfigError(f"max_entries is {max_entries}, expected at least 0")
        self.judge = judge
        self.name = judge.name
        self.stats = CacheStats()
        self._version, self._store, self._tenant = version, store, tenant
        self._lock = threading.Lock()
        self._entries = BoundedMap[str, JudgeAnswer](max_entries)

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        """Answer from memory or the store, and ask the judge for all remaining questions in one call."""
        version = self.version(transcript)
        content = hash_content(transcript)
        keys = [compute_verdict_key(content, hash_question(q), self.judge.name, version) for q in questions]
        answers = {
            key: cached for key, q in zip(keys, questions, strict=True) if (cached := self._look_up(key, q))
        }
        missing = {key: q for key, q in zip(keys, questions, strict=True) if key not in answers}
        self._update_stats(hits=len(answers), misses=len(missing))
        if missing:
            new = self.judge.decide(transcript, tuple(missing.values()))
            # If the endpoint was unavailable at first, its version has changed with the answer: do not cache.
            if any(new_answer.error is None for new_answer in new) and self.version(transcript) == version:
                for (key, question), answer in zip(missing.items(), new, strict=True):
                    self._save(key, question, answer, version, transcript.id)
            answers |= dict(zip(missing, new, strict=True))
        return tuple(replace(answers[key], question=q.id) for key, q in zip(keys, questions, strict=True))

    def generate_text(self, transcript: Trajectory, prompt: str) -> GeneratedText:
        """Generate text with the judge, uncached; return an error if the judge cannot generate text."""
        if isinstance(self.judge, TextGenerator):
            return self.judge.generate_text(transcript, prompt)
        return GeneratedText(error=f"judge {self.name!r} cannot generate text")

    def version(self, transcript: Trajectory) -> str:
        """Return everything besides run and question that an answer depends on."""
        if self._version is not None or not isinstance(self.judge, VersionedJudge):
            return self._version or ""
        return self.judge.version(transcript)

    def close(self) -> None:
        """Close the judge, but not the cache."""
        close_judge(self.judge)

    def _look_up(self, key: str, question: Question) -> JudgeAnswer | None:
        with self._lock:
            if (answer := self._entries.use(key)) is not None:
                return answer
        store, tenant = self._find_store()
        if store is None:
            return None
        try:
            row = store.get_verdict(key, tenant=tenant)
        except AgentGuardError:  # an unavailable store only costs a cache miss
            self._update_stats(store_errors=1)
            return None
        answer = None if row is None else _decode_answer(row.data, question)
        if answer is not None:
            self._cache_answer(key, answer)
        return answer

    def _save(self, key: str, question: Question, answer: JudgeAnswer, version: str, run_id: str) -> None:
        if answer.error is not None or not answer.probabilities:
            return
        cached_answer = replace(answer, usage=_build_cached_usage(answer.usage))
        self._cache_answer(key, cached_answer)
        store, tenant = self._find_store()
        if store is not None:
            row = VerdictRow(
                key=key,
                judge=self.judge.name,
                judge_version=version,
                question=question.id,
                run_id=run_id,
                tenant=tenant,
                data={"probabilities": dict(answer.probabilities), "usage": dict(answer.usage)},
            )
            store.write(row)

    def _find_store(self) -> tuple[VerdictStore | None, str]:
        scope = _SCOPE.get()
        if self._store is not None or scope is None:
            return self._store, self._tenant
        return scope.store, scope.tenant

    def _cache_answer(self, key: str, answer: JudgeAnswer) -> None:
        with self._lock:
            self._entries[key] = answer

    def _update_stats(self, **increments: int) -> None:
        with self._lock:
            self.stats = self.stats.add(**increments)
        if (scope := _SCOPE.get()) is not None:
            scope.add_stats(**increments)


def _decode_answer(data: Mapping[str, Any], question: Question) -> JudgeAnswer | None:
    """Decode an answer from a row; return None unless its options are those of the question."""
    probabilities = data.get("probabilities")
    if not isinstance(probabilities, Mapping) or set(probabilities) != set(list_options(question)):
        return None
    if not all(isinstance(p, (int, float)) and 0 <= p <= 1 + 1e-9 for p in probabilities.values()):
        return None
    if not math.isclose(math.fsum(probabilities.values()), 1.0, abs_tol=1e-6):
        return None
    usage = data.get("usage")
    return JudgeAnswer(
        question=question.id,
        probabilities=dict(probabilities),
        usage=_build_cached_usage(usage if isinstance(usage, Mapping) else {}),
    )


def _build_cached_usage(usage: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the usage of a cached answer: no cost, and the label mass of the original answer."""
    return {"cached": True, "calls": 0, "cached_answers": 1, "label_mass": usage.get("label_mass")}
