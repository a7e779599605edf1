"""What schemata say of a run: how much more each step looks like earlier failures than like sound steps.

CORRECT (arXiv 2509.24088) shows the nearest schemata to a language model. Without one, likeness itself has to
speak, and likeness to failures alone says mostly how usual a step is: where the steps beside those failures
are at hand, likeness to them is taken off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agentguard.errors import ConfigError
from agentguard.schemata.index import SchemaIndex
from agentguard.schemata.model import Match, Profile
from agentguard.trajectory.grouping import normalize_group_key

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

DEFAULT_NEIGHBOURS: Final = 3
"""Nearest schemata that speak: one is noisy, and ten are a fair part of a small store."""
_MAX_NEGATIVE_EXAMPLES: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NegativeExample:
    """A step that was not at fault in a run that failed, and the question of that run."""

    profile: Profile
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilaritySignal:
    """What schemata say of a run.

    Attributes:
        matches: for each step the schemata nearest to it.
        signal: for each step how much they speak for it, in standard deviations of its run; all 0 if nothing
            can be compared. Shape (steps, 1), as `agentguard.judge.embedded.training.SignalFunction` has it.
    """

    matches: tuple[tuple[Match, ...], ...]
    signal: Array


class SchemaSignals:
    """Compares steps with schemata; safe to use from several threads.

    Args:
        index: the schemata.
        k: nearest ones that count.
        sound: steps that were not at fault; beyond 20,000, that many of them, evenly chosen.

    Raises:
        ConfigError: ``k`` is below 1.
    """

    def __init__(
        self, index: SchemaIndex, *, k: int = DEFAULT_NEIGHBOURS, negatives: Sequence[NegativeExample] = ()
    ) -> None:
        import numpy as np

        if k < 1:
            raise ConfigError(f"schema signals: k is {k!r}, expected at least 1")
        kept = negatives[:: max(1, -(-len(negatives) // _MAX_NEGATIVE_EXAMPLES))]
        self.index, self.k = index, k
        self._negatives = index.encode([one.profile for one in kept])
        self._groups = np.array([normalize_group_key(one.group) for one in kept], dtype=np.str_)

    def compute(
        self, profiles: Sequence[Profile], *, excluded_groups: Sequence[str] = ()
    ) -> SimilaritySignal:
        """Compare the steps of one run; schemata and sound steps of the groups named are passed over."""
        import numpy as np

        from agentguard.judge.embedded.conditional_logit import standardize_within_run

        matches = self.index.search(profiles, self.k, excluded_groups=excluded_groups)
        likeness = [[match.similarity for match in found] for found in matches]
        if not any(likeness):
            return SimilaritySignal(matches=matches, signal=np.zeros((len(profiles), 1)))
        near = np.array([sum(row) / len(row) for row in likeness])
        return SimilaritySignal(
            matches=matches,
            signal=standardize_within_run(
                (near - self._background_similarity(profiles, excluded_groups))[:, None]
            ),
        )

    def _background_similarity(self, profiles: Sequence[Profile], excluded_groups: Sequence[str]) -> Array:
        """Mean likeness of each step to the sound steps nearest to it; 0 where there are none."""
        import numpy as np

        keys = [key for group in excluded_groups if (key := normalize_group_key(group))]
        held = self._negatives[~np.isin(self._groups, keys)]
        if not len(held):
            return np.zeros(len(profiles))
        likeness = (self.index.encode(profiles) @ held.T).astype(np.float64)
        k = min(self.k, len(held))
        return np.asarray(np.partition(likeness, len(held) - k, axis=1)[:, -k:].mean(axis=1))
