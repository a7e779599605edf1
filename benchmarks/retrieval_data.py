"""Synthetic schemata for benchmarks/retrieval.py: failure kinds in the closed vocabulary of step profiles.

A kind has a few sentences. A schema of a kind contains most of them, some random others, and a line of plain
words. The frequency of a kind is proportional to 1 / rank. Equal seeds give equal schemata.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from agentguard.schemata.model import ErrorSchema, Profile, Provenance
from agentguard.schemata.profiles.step_profile import VOCABULARY, format_words

_WORDS = """
check result before answer assume wrong list again search page missing total compare value source step plan
change file code output fail retry limit user ask confirm skip verify number data table first last
"""
WORDS = _WORDS.split()
KEPT, BY_CHANCE, SENTENCES, SAID, SPOILT = 0.75, 3, 9, 12, 0.2


@dataclass(frozen=True)
class Kind:
    """A failure kind: its sentences, its frequency, and whether it is missed without schemata."""

    sentences: tuple[str, ...]
    weight: float
    hard: float


@dataclass(frozen=True)
class Sample:
    """Schemata with their kinds and difficulty, and profiles of new failures of the same kinds."""

    kinds: list[Kind]
    schemata: list[ErrorSchema]
    of: list[int]
    spoilt: list[bool]
    difficulty: dict[str, float]
    asked: list[Profile]
    asked_of: list[int]


def sample(count: int, asked: int, *, kinds: int = 400, seed: int = 7) -> Sample:
    """Make ``count`` schemata and ``asked`` profiles.

    Every fifth schema is spoilt: half of its sentences are random, and recovery refuted it more often.
    """
    rng = random.Random(seed)
    every = sorted(VOCABULARY)
    made = [
        Kind(tuple(rng.sample(every, SENTENCES)), 1 / (place + 1) ** 0.8, rng.random() ** 2)
        for place in range(kinds)
    ]
    weights = [kind.weight for kind in made]
    of = rng.choices(range(kinds), weights, k=count)
    asked_of = rng.choices(range(kinds), weights, k=asked)
    spoilt = [rng.random() < SPOILT for _ in of]
    schemata = [_schema(place, made[kind], rng, every, spoilt[place]) for place, kind in enumerate(of)]
    noise = (min(1.0, max(0.0, made[kind].hard + rng.gauss(0, 0.1))) for kind in of)
    return Sample(
        kinds=made,
        schemata=schemata,
        of=of,
        spoilt=spoilt,
        difficulty={schema.id: hard for schema, hard in zip(schemata, noise, strict=True)},
        asked=[_portrait(made[kind], rng, every) for kind in asked_of],
        asked_of=asked_of,
    )


def _draw_sentences(kind: Kind, rng: random.Random, every: list[str], kept: float) -> list[str]:
    told = [sentence for sentence in kind.sentences if rng.random() < kept]
    return [*told, *rng.sample(every, BY_CHANCE + SENTENCES - len(told))][: SENTENCES + 1]


def _traits(told: list[str], rng: random.Random) -> dict[str, float]:
    return {VOCABULARY[sentence]: round(rng.uniform(0.5, 1), 3) for sentence in told}


def _words(rng: random.Random) -> str:
    return format_words(" ".join(rng.choices(WORDS, k=SAID)))


def _schema(place: int, kind: Kind, rng: random.Random, every: list[str], spoilt: bool) -> ErrorSchema:
    told = _draw_sentences(kind, rng, every, KEPT / 2 if spoilt else KEPT)
    tried = rng.randrange(4)
    borne_out = sum(rng.random() < (0.2 if spoilt else 0.8) for _ in range(tried))
    return ErrorSchema(
        id=f"s{place:06d}",
        signature=(*told[:6], _words(rng)),
        context=tuple(told[6:]),
        traits=_traits(told, rng),
        provenance=Provenance(method="embedded", runs=(f"r{place}",), groups=(f"q {place // 3}",)),
        confirmed=borne_out,
        refuted=tried - borne_out,
    )


def _portrait(kind: Kind, rng: random.Random, every: list[str]) -> Profile:
    told = _draw_sentences(kind, rng, every, KEPT)
    return Profile(text="\n".join([*told, _words(rng)]), traits=_traits(told, rng))
