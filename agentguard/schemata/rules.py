"""When a cached schema is new, hot, stale or refuted: the settings of the live cache, and what follows."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import Final

from agentguard.errors import ConfigError
from agentguard.schemata.model import Schema

DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRules:
    """Settings of `agentguard.schemata.cache.SchemaCache`.

    Attributes:
        new_over: distance (1 - cosine) to every schema that fits from which on a failure is new, in [0, 2].
            At 0.25 a third of the schemata is saved on Who&When and no accuracy is lost; at 0.35 some is.
        looked_at: nearest schemata that are tried for a merge; the nearest may have other codes.
        most: schemata that are active at once, and as many retired ones that are remembered, at least 1.
        kept_at_limit: share of ``most`` that selection keeps when the limit is passed, so that it is not
            needed again with the next failure, in (0, 1].
        hot_after: uses and merges since the last distillation from which on a schema is distilled anew, at
            least 1: about as many as there are members to distil from.
        members: failures behind a schema that are kept to distil it from, the latest ones, at least 1.
        stale_after_s: seconds without a use, merge or verdict after which a schema is retired: a quarter of
            a year, in which tools and prompts of an agent have usually changed.
        refuted_at: probability, given what was confirmed and refuted, that a schema is wrong more often than
            right, from which on it is retired, in [0.5, 1). At 0.95 four refutations do it where nothing was
            confirmed: one failed recovery has other causes too often.
        proven_at: runs that must have borne out a schema learnt from recoveries before it is offered, at
            least 2: no single run may teach the others.
    """

    new_over: float = 0.25
    looked_at: int = 5
    most: int = 10_000
    kept_at_limit: float = 0.9
    hot_after: int = 16
    members: int = 8
    stale_after_s: float = 90 * DAY_S
    refuted_at: float = 0.95
    proven_at: int = 2

    def __post_init__(self) -> None:
        """Raise ConfigError on a setting out of its range."""
        self._check("new_over", 0 <= self.new_over <= 2, "a number in [0, 2]")
        for name in ("looked_at", "most", "hot_after", "members"):
            self._check(name, getattr(self, name) >= 1, "at least 1")
        self._check("kept_at_limit", 0 < self.kept_at_limit <= 1, "a number in (0, 1]")
        self._check("proven_at", self.proven_at >= 2, "at least 2")
        self._check("stale_after_s", self.stale_after_s > 0, "more than 0")
        self._check("refuted_at", 0.5 <= self.refuted_at < 1, "a number in [0.5, 1)")

    def _check(self, name: str, good: bool, expected: str) -> None:
        if not good:
            raise ConfigError(f"schema cache: {name} is {getattr(self, name)!r}, expected {expected}")

    def refuted(self, schema: Schema) -> bool:
        """Whether recoveries speak against a schema."""
        return schema.refuted > 0 and wrong_more_often(schema.confirmed, schema.refuted) >= self.refuted_at

    def proven(self, schema: Schema) -> bool:
        """Whether enough runs bore a schema out for it to leave quarantine."""
        return schema.confirmed >= self.proven_at and not self.refuted(schema)

    def stale(self, schema: Schema, now: float) -> bool:
        """Whether a schema was not needed for long; ``now`` in epoch seconds."""
        last = max(schema.created_at, schema.updated_at, schema.used_at or 0.0)
        return now - last > self.stale_after_s


def wrong_more_often(confirmed: int, refuted: int) -> float:
    """Probability that a schema is right in less than half of its uses.

    The rate of being right has an even prior, so that after the counts it is Beta(confirmed + 1,
    refuted + 1); its distribution function at one half is a binomial tail, and exact.
    """
    trials = confirmed + refuted + 1
    tail = sum(comb(trials, k) for k in range(confirmed + 1, trials + 1))
    return tail / (1 << trials)


def trust(schema: Schema) -> float:
    """How far a schema may be believed: the mean of the posterior of `wrong_more_often`, 0.5 if untried."""
    return (schema.confirmed + 1) / (schema.confirmed + schema.refuted + 2)


def compatible(one: Schema, other: Schema) -> bool:
    """Whether two schemata may be of one kind of failure: one origin, and a code in common or none known."""
    if one.provenance.origin is not other.provenance.origin:
        return False
    return not one.codes or not other.codes or bool({*one.codes} & {*other.codes})
