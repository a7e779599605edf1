"""Settings of the live cache: rules for new, hot, stale and refuted schemata."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import Final

from agentguard.errors import ConfigError
from agentguard.schemata.model import ErrorSchema

DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePolicy:
    """Settings of `agentguard.schemata.live_cache.SchemaCache`.

    Attributes:
        novelty_threshold: distance (1 - cosine) to all compatible schemata above which a failure is new, in
            [0, 2]. On Who&When, 0.25 saves a third of the schemata without loss of accuracy; 0.35 loses some.
        max_merge_candidates: nearest schemata that are candidates for a merge; the nearest may have other
            codes.
        max_schemata: maximum number of active schemata, and of retired ones, at least 1.
        retention_ratio: share of ``max_schemata`` that an eviction retains, in (0, 1]; below 1, the next
            failure does not cause another eviction.
        redistill_threshold: number of uses and merges since the last distillation that causes another
            distillation, at least 1.
        max_members: number of the latest failures of a schema that the next distillation uses, at least 1.
        stale_after_s: seconds without a use, merge or verdict after which a schema is retired. The default is
            a quarter of a year: after that time, tools and prompts of an agent have usually changed.
        refutation_threshold: probability that a schema is wrong more often than right, from which it is
            retired, in [0.5, 1). At 0.95, four refutations without a confirmation suffice: a single failed
            recovery often has other causes.
        min_confirmations: number of runs that must confirm a schema from recoveries before searches return
            it, at least 2, so that a single run cannot influence the others.
    """

    novelty_threshold: float = 0.25
    max_merge_candidates: int = 5
    max_schemata: int = 10_000
    retention_ratio: float = 0.9
    redistill_threshold: int = 16
    max_members: int = 8
    stale_after_s: float = 90 * DAY_S
    refutation_threshold: float = 0.95
    min_confirmations: int = 2

    def __post_init__(self) -> None:
        """Raise ConfigError on a setting out of its range."""
        self._check("novelty_threshold", 0 <= self.novelty_threshold <= 2, "a number in [0, 2]")
        for name in ("max_merge_candidates", "max_schemata", "redistill_threshold", "max_members"):
            self._check(name, getattr(self, name) >= 1, "at least 1")
        self._check("retention_ratio", 0 < self.retention_ratio <= 1, "a number in (0, 1]")
        self._check("min_confirmations", self.min_confirmations >= 2, "at least 2")
        self._check("stale_after_s", self.stale_after_s > 0, "more than 0")
        self._check("refutation_threshold", 0.5 <= self.refutation_threshold < 1, "a number in [0.5, 1)")

    def _check(self, name: str, is_valid: bool, expected: str) -> None:
        if not is_valid:
            raise ConfigError(f"schema cache: {name} is {getattr(self, name)!r}, expected {expected}")

    def is_refuted(self, schema: ErrorSchema) -> bool:
        """Return whether the refutations of a schema suffice to retire it."""
        return (
            schema.refuted > 0
            and compute_mostly_wrong_probability(schema.confirmed, schema.refuted)
            >= self.refutation_threshold
        )

    def is_proven(self, schema: ErrorSchema) -> bool:
        """Return whether enough runs confirm a schema for it to leave quarantine."""
        return schema.confirmed >= self.min_confirmations and not self.is_refuted(schema)

    def is_stale(self, schema: ErrorSchema, now: float) -> bool:
        """Return whether a schema was not used or changed for ``stale_after_s``; ``now`` in epoch seconds."""
        last = max(schema.created_at, schema.updated_at, schema.used_at or 0.0)
        return now - last > self.stale_after_s


def compute_mostly_wrong_probability(confirmed: int, refuted: int) -> float:
    """Return the probability that a schema is right in less than half of its uses.

    The prior of the success rate is uniform, so the posterior is Beta(confirmed + 1, refuted + 1). Its
    distribution function at one half is exactly a binomial tail.
    """
    trials = confirmed + refuted + 1
    tail = sum(comb(trials, k) for k in range(confirmed + 1, trials + 1))
    return tail / (1 << trials)


def compute_mean_success_rate(schema: ErrorSchema) -> float:
    """Return the posterior mean of the success rate of a schema; 0.5 without a use.

    The prior is that of `compute_mostly_wrong_probability`.
    """
    return (schema.confirmed + 1) / (schema.confirmed + schema.refuted + 2)


def are_compatible(one: ErrorSchema, other: ErrorSchema) -> bool:
    """Return whether two schemata can be of one kind of failure.

    They have the same origin, and a common code or at least one without codes.
    """
    if one.provenance.origin is not other.provenance.origin:
        return False
    return not one.codes or not other.codes or bool({*one.codes} & {*other.codes})
