"""Profile of a step or of a complete run: traits, their sentences, and words without the topic.

There is one profile for each candidate of the run, in the order of the rows of
`agentguard.judge.embedded.features.table.build_step_table`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from agentguard.detect.base import Finding
from agentguard.judge.embedded.features.table import build_step_table
from agentguard.schemata.model import Profile
from agentguard.schemata.profiles.delexicalization import Delexicalizer
from agentguard.schemata.profiles.finding_traits import (
    FINDING_SENTENCES,
    build_finding_traits,
    build_run_finding_traits,
)
from agentguard.schemata.profiles.traits import TRAITS, TraitPart, is_positional
from agentguard.trajectory.model import Step, Trajectory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MIN_SENTENCE_WEIGHT: Final = 0.5
"""Minimum weight of a trait for its sentence to be part of the text."""

MAX_WORDS_CHARS: Final = 120
"""Maximum number of characters of a step in its profile, two thirds at its head.

With more characters, steps that follow one template become similar and the faulty step is harder to
distinguish.
"""

_MIN_TRAIT_WEIGHT: Final = 0.05
_MAX_COMMON_SHARE: Final = 1 / 3
_WORDS_PREFIX: Final = "In words: "

_TRAIT_SENTENCES: Final[Mapping[str, tuple[TraitPart, str]]] = {
    **{name: entry for name, entry in FINDING_SENTENCES.items() if entry[0] is TraitPart.SELF},
    **{name: entry for name, entry in FINDING_SENTENCES.items() if entry[0] is not TraitPart.SELF},
    **{trait.name: (trait.part, trait.sentence) for trait in TRAITS},
}
VOCABULARY: Final[Mapping[str, str]] = {sentence: name for name, (_, sentence) in _TRAIT_SENTENCES.items()}
"""Mapping from each sentence of a profile, except the words of the step, to the name of its trait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfile:
    """Profile of a candidate: index of the step, its traits, and its words without the topic."""

    step: int
    traits: Mapping[str, float]
    words: str


def build_step_profiles(run: Trajectory, findings: Sequence[Finding]) -> tuple[StepProfile, ...]:
    """Return the profile of each candidate of a run, in order."""
    table = build_step_table(run)
    weights = _to_mappings(_compute_weights(table.values))
    delexicalizer = Delexicalizer(run)
    finding_traits = build_finding_traits(table.steps, findings, len(run.steps))
    return tuple(
        StepProfile(
            step=step,
            traits=row | finding_row,
            words=delexicalizer(_build_step_text(run.steps[step]), MAX_WORDS_CHARS),
        )
        for step, row, finding_row in zip(table.steps, weights, finding_traits, strict=True)
    )


def profile_steps(run: Trajectory, findings: Sequence[Finding]) -> tuple[Profile, ...]:
    """Return a profile of each candidate of a run, in the order of ``build_step_table(run)``; deterministic.

    The text of a profile contains no word of the topic, no name and no number. The names of its traits are
    those of the vocabulary, or ``"code:<qualified code>"`` of a finding.

    Args:
        run: a recorded run.
        findings: findings of the detectors.
    """
    return tuple(
        Profile(text=format_profile_text(one.traits, one.words), traits=one.traits, step=one.step)
        for one in build_step_profiles(run, findings)
    )


def profile_run(run: Trajectory, findings: Sequence[Finding]) -> Profile:
    """Return the profile of a complete run: the maximum of each trait over all candidates.

    Its sentences cover the findings, the constant properties (length of the run, an orchestrator) and the
    behaviour of at most a third of the steps. They omit positions, which are similar in all runs.
    """
    profiles = build_step_profiles(run, findings)
    max_weights: dict[str, float] = {}
    counts: dict[str, int] = {}
    for profile in profiles:
        for name, weight in profile.traits.items():
            max_weights[name] = max(max_weights.get(name, 0.0), weight)
            counts[name] = counts.get(name, 0) + (weight >= MIN_SENTENCE_WEIGHT)
    max_count = max(1.0, _MAX_COMMON_SHARE * len(profiles))
    rare_traits = {
        name: weight
        for name, weight in max_weights.items()
        if name.startswith("run:") or (counts[name] <= max_count and not is_positional(name))
    }
    run_traits = build_run_finding_traits(findings)
    return Profile(text=format_profile_text(rare_traits | run_traits, ""), traits=max_weights | run_traits)


def format_profile_text(traits: Mapping[str, float], words: str) -> str:
    """Return the text of a profile: one sentence per line, in the form of `ErrorSchema.to_text`."""
    return "\n".join((*format_signature(traits, words), *format_sentences(traits, TraitPart.BEFORE)))


def format_signature(traits: Mapping[str, float], words: str) -> tuple[str, ...]:
    """Return sentences on the behaviour and effects of a step; its words without the topic come last."""
    sentences = format_sentences(traits, TraitPart.SELF, TraitPart.AFTER)
    return (*sentences, format_words(words)) if words else sentences


def format_words(words: str) -> str:
    """Return the only sentence outside the closed vocabulary: the step's words without their topic."""
    return f"{_WORDS_PREFIX}{words}"


def is_words_sentence(sentence: str) -> bool:
    """Return whether a sentence is from `format_words`."""
    return sentence.startswith(_WORDS_PREFIX)


def format_sentences(traits: Mapping[str, float], *parts: TraitPart) -> tuple[str, ...]:
    """Return the sentences of traits of some parts, in the order of the vocabulary.

    Traits with a weight below `MIN_SENTENCE_WEIGHT` are omitted.
    """
    sentence_of_trait = _select_traits(parts)
    ranked_sentences = [
        sentence_of_trait[name]
        for name, weight in traits.items()
        if weight >= MIN_SENTENCE_WEIGHT and name in sentence_of_trait
    ]
    return tuple(sentence for _, sentence in sorted(ranked_sentences))


@cache
def _select_traits(parts: tuple[TraitPart, ...]) -> dict[str, tuple[int, str]]:
    """Return the traits of some parts, with their position in the vocabulary and their sentence."""
    return {
        name: (_TRAIT_ORDER[name], sentence)
        for name, (part, sentence) in _TRAIT_SENTENCES.items()
        if part in parts
    }


def get_sentence(name: str) -> str | None:
    """Return the sentence of a trait; None for a code, which has no sentence."""
    entry = _TRAIT_SENTENCES.get(name)
    return entry[1] if entry is not None else None


def sort_traits(names: Iterable[str]) -> list[str]:
    """Return trait names in the order of the vocabulary, then the others by name."""
    return sorted(names, key=lambda name: (_TRAIT_ORDER.get(name, len(_TRAIT_ORDER)), name))


_TRAIT_NAMES: Final = tuple(trait.name for trait in TRAITS)
_TRAIT_ORDER: Final = {name: place for place, name in enumerate(_TRAIT_SENTENCES)}


def _build_step_text(step: Step) -> str:
    return step.content or step.reasoning


def _to_mappings(weights: NDArray[np.float64]) -> list[dict[str, float]]:
    """Return one mapping from trait to weight for each row, without small weights."""
    import numpy as np

    rows, columns = (weights > _MIN_TRAIT_WEIGHT).nonzero()
    names = [_TRAIT_NAMES[column] for column in columns.tolist()]
    values = weights[rows, columns].round(4).tolist()
    ends = np.searchsorted(rows, np.arange(len(weights) + 1)).tolist()
    return [dict(zip(names[a:b], values[a:b], strict=True)) for a, b in pairwise(ends)]


def _compute_weights(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weights of all traits, shape (candidates, traits), from a table of features."""
    import numpy as np

    columns, zeros, scale, starts = _collect_bounds()
    scaled = np.clip((values[:, columns] - zeros) * scale, 0.0, 1.0)
    minima: NDArray[np.float64] = np.minimum.reduceat(scaled, starts, axis=1)
    return minima


@cache
def _collect_bounds() -> tuple[Any, Any, Any, Any]:
    """Return columns, zero points and scales of all bounds, and the first bound of each trait."""
    import numpy as np

    from agentguard.judge.embedded.features.catalogue import COLUMN_BY_NAME

    bounds = [bound for trait in TRAITS for bound in trait.bounds]
    starts = np.cumsum([0] + [len(trait.bounds) for trait in TRAITS[:-1]])
    columns = np.array([COLUMN_BY_NAME[bound.feature] for bound in bounds])
    zeros = np.array([bound.zero_at for bound in bounds])
    return columns, zeros, np.array([1.0 / (bound.one_at - bound.zero_at) for bound in bounds]), starts
