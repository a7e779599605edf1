"""What a step, or a whole run, looks like: traits, the sentences they are told in, and words without topic.

The rows are those of `agentguard.judge.features.table.step_table`: one portrait a candidate, in its order, so
that what is found for a portrait can be set beside the features of the same step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from agentguard.detect.base import Finding
from agentguard.judge.features.table import step_table
from agentguard.schemata.model import Portrait
from agentguard.schemata.plain import Plainer
from agentguard.schemata.signs import SENTENCES, all_signs, signs
from agentguard.schemata.traits import TRAITS, Part, placing
from agentguard.trajectory.model import Step, Trajectory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SHOWN: Final = 0.5
"""Weight from which on a trait is told in a sentence."""

WORDS_READ: Final = 120
"""Characters of a step whose words are told, two thirds of them at its head. More of them make steps that
follow one template look alike, and tell the step at fault less well from the others."""

_FAINT: Final = 0.05
_TELLING: Final = 1 / 3
_IN_WORDS: Final = "In words: "

_TOLD: Final[Mapping[str, tuple[Part, str]]] = {
    **{name: told for name, told in SENTENCES.items() if told[0] is Part.SELF},
    **{name: told for name, told in SENTENCES.items() if told[0] is not Part.SELF},
    **{trait.name: (trait.part, trait.sentence) for trait in TRAITS},
}
_PARTS: Final = {name: part for name, (part, _) in _TOLD.items()}
VOCABULARY: Final[Mapping[str, str]] = {sentence: name for name, (_, sentence) in _TOLD.items()}
"""Every sentence a portrait can hold, beside the words of its step, to the name of its trait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One candidate: index of the step, its traits, its words without topic."""

    step: int
    traits: Mapping[str, float]
    words: str


def looks(run: Trajectory, findings: Sequence[Finding]) -> tuple[Look, ...]:
    """What each candidate of a run looks like, in order."""
    table = step_table(run)
    weights = _named(_weights(table.values))
    plainer = Plainer(run)
    found = signs(table.steps, findings, len(run.steps))
    return tuple(
        Look(step=step, traits=row | seen, words=plainer(_said(run.steps[step]), WORDS_READ))
        for step, row, seen in zip(table.steps, weights, found, strict=True)
    )


def portray(run: Trajectory, findings: Sequence[Finding]) -> tuple[Portrait, ...]:
    """A portrait of each step that could be at fault; row ``i`` is row ``i`` of ``step_table(run)``.

    Deterministic. Nothing of the task, no name and no number is in a portrait's text; its traits' names are
    of the vocabulary, or ``"code:<qualified code>"`` of a finding.

    Args:
        run: a recorded run.
        findings: what the detectors saw in it.
    """
    return tuple(
        Portrait(text=text_of(one.traits, one.words), traits=one.traits, step=one.step)
        for one in looks(run, findings)
    )


def portray_run(run: Trajectory, findings: Sequence[Finding]) -> Portrait:
    """A portrait of a whole run: the most each trait weighs at any candidate, told where it is telling.

    Told are the findings, what holds all along (how long the run is, whether one role steers), and what steps
    do that no more than a third of them do; not where they stand, which is much the same in every run.
    """
    seen = looks(run, findings)
    most: dict[str, float] = {}
    held: dict[str, int] = {}
    for one in seen:
        for name, weight in one.traits.items():
            most[name] = max(most.get(name, 0.0), weight)
            held[name] = held.get(name, 0) + (weight >= SHOWN)
    rare = max(1.0, _TELLING * len(seen))
    telling = {
        name: weight
        for name, weight in most.items()
        if name.startswith("run:") or (held[name] <= rare and not placing(name))
    }
    everywhere = all_signs(findings)
    return Portrait(text=text_of(telling | everywhere, ""), traits=most | everywhere)


def text_of(traits: Mapping[str, float], words: str) -> str:
    """The text of a portrait: a sentence a line, as ``Schema.text`` has them."""
    return "\n".join((*signature_of(traits, words), *sentences(traits, Part.BEFORE)))


def signature_of(traits: Mapping[str, float], words: str) -> tuple[str, ...]:
    """What a step does and what came of it, in sentences; its words without topic last, if any are left."""
    told = sentences(traits, Part.SELF, Part.AFTER)
    return (*told, in_words(words)) if words else told


def in_words(words: str) -> str:
    """The one sentence that is not of the closed vocabulary: the step's own words without their topic."""
    return f"{_IN_WORDS}{words}"


def is_words(sentence: str) -> bool:
    """Whether a sentence is what `in_words` makes."""
    return sentence.startswith(_IN_WORDS)


def sentences(traits: Mapping[str, float], *parts: Part) -> tuple[str, ...]:
    """Sentences of the traits that weigh at least `SHOWN`, in the order of the vocabulary."""
    told = _of(parts)
    shown = [told[name] for name, weight in traits.items() if weight >= SHOWN and name in told]
    return tuple(sentence for _, sentence in sorted(shown))


@cache
def _of(parts: tuple[Part, ...]) -> dict[str, tuple[int, str]]:
    """Traits of some parts, with their place in the vocabulary and their sentence."""
    return {name: (_ORDER[name], told) for name, (part, told) in _TOLD.items() if part in parts}


def sentence_of(name: str) -> str | None:
    """The sentence of a trait; None for a code, which has none."""
    told = _TOLD.get(name)
    return told[1] if told is not None else None


def part_of(name: str) -> Part | None:
    """What a trait speaks of; None for a code."""
    return _PARTS.get(name)


def ordered(names: Iterable[str]) -> list[str]:
    """Names of traits in the order of the vocabulary, others after them by name."""
    return sorted(names, key=lambda name: (_ORDER.get(name, len(_ORDER)), name))


_NAMES: Final = tuple(trait.name for trait in TRAITS)
_ORDER: Final = {name: place for place, name in enumerate(_TOLD)}


def _said(step: Step) -> str:
    return step.content or step.reasoning


def _named(weights: NDArray[np.float64]) -> list[dict[str, float]]:
    """A row of weights each as a mapping, the faint ones left out."""
    import numpy as np

    rows, columns = (weights > _FAINT).nonzero()
    names = [_NAMES[column] for column in columns.tolist()]
    values = weights[rows, columns].round(4).tolist()
    ends = np.searchsorted(rows, np.arange(len(weights) + 1)).tolist()
    return [dict(zip(names[a:b], values[a:b], strict=True)) for a, b in pairwise(ends)]


def _weights(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights of all traits, shape (candidates, traits), from a table of features."""
    import numpy as np

    columns, none, scale, starts = _bounds()
    held = np.clip((values[:, columns] - none) * scale, 0.0, 1.0)
    least: NDArray[np.float64] = np.minimum.reduceat(held, starts, axis=1)
    return least


@cache
def _bounds() -> tuple[Any, Any, Any, Any]:
    """Columns, zero points and scales of all bounds, and where each trait's bounds begin."""
    import numpy as np

    from agentguard.judge.features.spec import COLUMN

    bounds = [bound for trait in TRAITS for bound in trait.bounds]
    starts = np.cumsum([0] + [len(trait.bounds) for trait in TRAITS[:-1]])
    columns = np.array([COLUMN[bound.feature] for bound in bounds])
    none = np.array([bound.none for bound in bounds])
    return columns, none, np.array([1.0 / (bound.full - bound.none) for bound in bounds]), starts
