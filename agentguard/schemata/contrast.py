"""How to tell a step at fault from those of the same run that look like it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from agentguard.schemata.portrait import SHOWN, Look, ordered, sentence_of
from agentguard.schemata.traits import placing

HAS: Final = "Set apart from the steps it resembles: {}"
LACKS: Final = "Steps that only resemble it: {}"

_ALIKE: Final = 3
_MOST: Final = 4
_MOST_LACKED: Final = 2
_GAP: Final = 0.4
_COMMON: Final = 0.6
_ABSENT: Final = 0.2
_SEEN: Final = 0.25
"""What a detector found says more than a trait that is as rare in the run."""


def contrast(seen: Sequence[Look], at: int) -> tuple[str, ...]:
    """Sentences on what candidate ``at`` has and its look-alikes do not, and on what they have instead."""
    mine = seen[at].traits
    others = [one.traits for place, one in enumerate(seen) if place != at]
    if not others:
        return ()
    alike = sorted(others, key=lambda traits: -likeness(mine, traits))[:_ALIKE]
    has = {
        name: weight - (_mean(alike, name) + _mean(others, name)) / 2 + _SEEN * name.startswith("finding:")
        for name, weight in mine.items()
        if weight >= SHOWN and _tells(name)
    }
    common = {name for traits in alike for name in traits if mine.get(name, 0.0) < _ABSENT and _tells(name)}
    lacks = {name: _mean(alike, name) for name in common}
    return (
        *(HAS.format(sentence_of(name)) for name in _top(has, _GAP, _MOST)),
        *(LACKS.format(sentence_of(name)) for name in _top(lacks, _COMMON, _MOST_LACKED)),
    )


def likeness(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Cosine of two bags of traits, in [0, 1]; 0 if either is empty."""
    shared = sum(weight * other[name] for name, weight in one.items() if name in other)
    return shared / (_length(one) * _length(other)) if shared else 0.0


def _length(traits: Mapping[str, float]) -> float:
    return math.sqrt(sum(weight * weight for weight in traits.values()))


def _mean(many: Sequence[Mapping[str, float]], name: str) -> float:
    return sum(traits.get(name, 0.0) for traits in many) / len(many)


def _tells(name: str) -> bool:
    """Whether a trait says more than where a step stands, which sets every step apart or none."""
    return not placing(name) and sentence_of(name) is not None


def _top(scores: Mapping[str, float], least: float, most: int) -> list[str]:
    """The names that score highest, the order of the vocabulary breaking ties."""
    kept = [name for name in ordered(scores) if scores[name] >= least]
    return sorted(kept, key=lambda name: -round(scores[name], 6))[:most]
