"""Similarity signal of schemata: similarity of a step to earlier failures, minus that to negative examples.

CORRECT (arXiv 2509.24088) shows the nearest schemata to a language model. Without a model, the similarity
itself is the signal. Similarity to failures alone is high for common steps. Therefore, the similarity to the
other steps of the same runs is subtracted, if they are available.
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
"""Number of nearest schemata in the signal: one is noisy, and ten are a large part of a small store."""
_MAX_NEGATIVE_EXAMPLES: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NegativeExample:
    """Step of a failed run that was not at fault, and the question of that run."""

    profile: Profile
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilaritySignal:
    """Similarity signal of a run.

    Attributes:
        matches: the nearest schemata of each step.
        signal: evidence for each step, in standard deviations of its run; all 0 without a matching schema.
            Shape (steps, 1), as in `agentguard.judge.embedded.training.SignalFunction`.
    """

    matches: tuple[tuple[Match, ...], ...]
    signal: Array


class SchemaSignals:
    """Comparison of steps with schemata; thread-safe.

    Args:
        index: the schemata.
        k: number of nearest schemata in the signal, at least 1.
        negatives: steps that were not at fault; of more than 20,000, an even sample is used.

    Raises:
        ConfigError: ``k`` is below 1.
    """

    def __init__(
        self, index: SchemaIndex, *, k: int = DEFAULT_NEIGHBOURS, negatives: Sequence[NegativeExample] = ()
    ) -> None:
        import numpy as np

        if k < 1:
            raise ConfigError(f"schema signals: k is {k!r}, expected at least 1")
        sample = negatives[:: max(1, -(-len(negatives) // _MAX_NEGATIVE_EXAMPLES))]
        self.index, self.k = index, k
        self._negatives = index.encode([example.profile for example in sample])
        self._groups = np.array([normalize_group_key(example.group) for example in sample], dtype=np.str_)

    def compute(
        self, profiles: Sequence[Profile], *, excluded_groups: Sequence[str] = ()
    ) -> SimilaritySignal:
        """Compute the signal of the steps of one run.

        Args:
            profiles: profiles of the steps.
            excluded_groups: questions whose schemata and negative examples are ignored.
        """
        import numpy as np

        from agentguard.judge.embedded.conditional_logit import standardize_within_run

        matches = self.index.search(profiles, self.k, excluded_groups=excluded_groups)
        similarities = [[match.similarity for match in step_matches] for step_matches in matches]
        if not any(similarities):
            return SimilaritySignal(matches=matches, signal=np.zeros((len(profiles), 1)))
        mean_similarity = np.array([sum(row) / len(row) for row in similarities])
        return SimilaritySignal(
            matches=matches,
            signal=standardize_within_run(
                (mean_similarity - self._compute_background(profiles, excluded_groups))[:, None]
            ),
        )

    def _compute_background(self, profiles: Sequence[Profile], excluded_groups: Sequence[str]) -> Array:
        """Return the mean similarity of each step to the nearest negative examples; 0 without one."""
        import numpy as np

        keys = [key for group in excluded_groups if (key := normalize_group_key(group))]
        background = self._negatives[~np.isin(self._groups, keys)]
        if not len(background):
            return np.zeros(len(profiles))
        similarities = (self.index.encode(profiles) @ background.T).astype(np.float64)
        k = min(self.k, len(background))
        return np.asarray(np.partition(similarities, len(background) - k, axis=1)[:, -k:].mean(axis=1))
