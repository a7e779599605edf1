"""What a step, or a whole run, looks like: traits, the sentences they are told in, and words without topic.

The rows are those of `agentguard.judge.embedded.features.table.build_step_table`: one portrait a candidate, in its order, so
that what is found for a portrait can be set beside the features of the same step.
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
"""Weight from which on a trait is told in a sentence."""

MAX_WORDS_CHARS: Final = 120
"""Characters of a step whose words are told, two thirds of them at its head. More of them make steps that
follow one template look alike, and tell the step at fault less well from the others."""

_MIN_TRAIT_WEIGHT: Final = 0.05
_MAX_COMMON_SHARE: Final = 1 / 3
_WORDS_PREFIX: Final = "In words: "

_TRAIT_SENTENCES: Final[Mapping[str, tuple[TraitPart, str]]] = {
    **{name: told for name, told in FINDING_SENTENCES.items() if told[0] is TraitPart.SELF},
    **{name: told for name, told in FINDING_SENTENCES.items() if told[0] is not TraitPart.SELF},
    **{trait.name: (trait.part, trait.sentence) for trait in TRAITS},
}
_TRAIT_PARTS: Final = {name: part for name, (part, _) in _TRAIT_SENTENCES.items()}
VOCABULARY: Final[Mapping[str, str]] = {sentence: name for name, (_, sentence) in _TRAIT_SENTENCES.items()}
"""Every sentence a portrait can hold, beside the words of its step, to the name of its trait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfile:
    """One candidate: index of the step, its traits, its words without topic."""

    step: int
    traits: Mapping[str, float]
    words: str


def build_step_profiles(run: Trajectory, findings: Sequence[Finding]) -> tuple[StepProfile, ...]:
    """What each candidate of a run looks like, in order."""
    table = build_step_table(run)
    weights = _to_mappings(_compute_weights(table.values))
    plainer = Delexicalizer(run)
    found = build_finding_traits(table.steps, findings, len(run.steps))
    return tuple(
        StepProfile(step=step, traits=row | seen, words=plainer(_step_text(run.steps[step]), MAX_WORDS_CHARS))
        for step, row, seen in zip(table.steps, weights, found, strict=True)
    )


def profile_steps(run: Trajectory, findings: Sequence[Finding]) -> tuple[Profile, ...]:
    """A portrait of each step that could be at fault; row ``i`` is row ``i`` of ``step_table(run)``.

    Deterministic. Nothing of the task, no name and no number is in a portrait's text; its traits' names are
    of the vocabulary, or ``"code:<qualified code>"`` of a finding.

    Args:
        run: a recorded run.
        findings: what the detectors saw in it.
    """
    return tuple(
        Profile(text=format_profile_text(one.traits, one.words), traits=one.traits, step=one.step)
        for one in build_step_profiles(run, findings)
    )


def profile_run(run: Trajectory, findings: Sequence[Finding]) -> Profile:
    """A portrait of a whole run: the most each trait weighs at any candidate, told where it is telling.

    Told are the findings, what holds all along (how long the run is, whether one role steers), and what steps
    do that no more than a third of them do; not where they stand, which is much the same in every run.
    """
    seen = build_step_profiles(run, findings)
    most: dict[str, float] = {}
    held: dict[str, int] = {}
    for one in seen:
        for name, weight in one.traits.items():
            most[name] = max(most.get(name, 0.0), weight)
            held[name] = held.get(name, 0) + (weight >= MIN_SENTENCE_WEIGHT)
    rare = max(1.0, _MAX_COMMON_SHARE * len(seen))
    telling = {
        name: weight
        for name, weight in most.items()
        if name.startswith("run:") or (held[name] <= rare and not is_positional(name))
    }
    everywhere = build_run_finding_traits(findings)
    return Profile(text=format_profile_text(telling | everywhere, ""), traits=most | everywhere)


def format_profile_text(traits: Mapping[str, float], words: str) -> str:
    """The text of a portrait: a sentence a line, as ``Schema.text`` has them."""
    return "\n".join((*format_signature(traits, words), *format_sentences(traits, TraitPart.BEFORE)))


def format_signature(traits: Mapping[str, float], words: str) -> tuple[str, ...]:
    """What a step does and what came of it, in sentences; its words without topic last, if any are left."""
    told = format_sentences(traits, TraitPart.SELF, TraitPart.AFTER)
    return (*told, format_words(words)) if words else told


def format_words(words: str) -> str:
    """The one sentence that is not of the closed vocabulary: the step's own words without their topic."""
    return f"{_WORDS_PREFIX}{words}"


def is_words_sentence(sentence: str) -> bool:
    """Whether a sentence is what `format_words` makes."""
    return sentence.startswith(_WORDS_PREFIX)


def format_sentences(traits: Mapping[str, float], *parts: TraitPart) -> tuple[str, ...]:
    """Sentences of the traits that weigh at least `SHOWN`, in the order of the vocabulary."""
    told = _select_traits(parts)
    shown = [told[name] for name, weight in traits.items() if weight >= MIN_SENTENCE_WEIGHT and name in told]
    return tuple(sentence for _, sentence in sorted(shown))


@cache
def _select_traits(parts: tuple[TraitPart, ...]) -> dict[str, tuple[int, str]]:
    """Traits of some parts, with their place in the vocabulary and their sentence."""
    return {
        name: (_TRAIT_ORDER[name], told) for name, (part, told) in _TRAIT_SENTENCES.items() if part in parts
    }


def get_sentence(name: str) -> str | None:
    """The sentence of a trait; None for a code, which has none."""
    told = _TRAIT_SENTENCES.get(name)
    return told[1] if told is not None else None


def get_part(name: str) -> TraitPart | None:
    """What a trait speaks of; None for a code."""
    return _TRAIT_PARTS.get(name)


def sort_traits(names: Iterable[str]) -> list[str]:
    """Names of traits in the order of the vocabulary, others after them by name."""
    return sorted(names, key=lambda name: (_TRAIT_ORDER.get(name, len(_TRAIT_ORDER)), name))


_TRAIT_NAMES: Final = tuple(trait.name for trait in TRAITS)
_TRAIT_ORDER: Final = {name: place for place, name in enumerate(_TRAIT_SENTENCES)}


def _step_text(step: Step) -> str:
    return step.content or step.reasoning


def _to_mappings(weights: NDArray[np.float64]) -> list[dict[str, float]]:
    """A row of weights each as a mapping, the faint ones left out."""
    import numpy as np

    rows, columns = (weights > _MIN_TRAIT_WEIGHT).nonzero()
    names = [_TRAIT_NAMES[column] for column in columns.tolist()]
    values = weights[rows, columns].round(4).tolist()
    ends = np.searchsorted(rows, np.arange(len(weights) + 1)).tolist()
    return [dict(zip(names[a:b], values[a:b], strict=True)) for a, b in pairwise(ends)]


def _compute_weights(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights of all traits, shape (candidates, traits), from a table of features."""
    import numpy as np

    columns, none, scale, starts = _collect_bounds()
    held = np.clip((values[:, columns] - none) * scale, 0.0, 1.0)
    least: NDArray[np.float64] = np.minimum.reduceat(held, starts, axis=1)
    return least


@cache
def _collect_bounds() -> tuple[Any, Any, Any, Any]:
    """Columns, zero points and scales of all bounds, and where each trait's bounds begin."""
    import numpy as np

    from agentguard.judge.embedded.features.catalogue import COLUMN_BY_NAME

    bounds = [bound for trait in TRAITS for bound in trait.bounds]
    starts = np.cumsum([0] + [len(trait.bounds) for trait in TRAITS[:-1]])
    columns = np.array([COLUMN_BY_NAME[bound.feature] for bound in bounds])
    none = np.array([bound.zero_at for bound in bounds])
    return columns, none, np.array([1.0 / (bound.one_at - bound.zero_at) for bound in bounds]), starts
