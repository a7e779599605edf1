"""Two schemata of one kind of failure made one: what most of the failures behind them share is kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from agentguard.errors import InputError
from agentguard.schemata.model import Provenance, Schema, Status
from agentguard.schemata.portrait import SHOWN, VOCABULARY, is_words, ordered

MOST_SENTENCES: Final = 60
MOST_FREE: Final = 8
"""Sentences kept that are not of the vocabulary, such as those a chat judge wrote."""

MOST_HEURISTICS: Final = 8
MOST_CODES: Final = 6
_STATUSES: Final = (Status.ACTIVE, Status.QUARANTINED, Status.RETIRED)


def merge(one: Schema, other: Schema) -> Schema:
    """Merge ``other`` into ``one``, whose id it keeps. Deterministic; neither is changed.

    Traits are averaged by support. A sentence of the vocabulary stays while its trait, on average, weighs
    enough to be told; of other sentences those that both have come first, then those of the schema with more
    support. Counts are added up; a run behind both counts once in the support.

    Raises:
        InputError: their failures are of different origins.
    """
    if one.provenance.origin is not other.provenance.origin:
        raise InputError(
            f"a schema of {one.provenance.origin} failures and one of {other.provenance.origin} failures "
            "cannot be merged",
            hint="keep them in stores of their own",
        )
    lead, rest = (one, other) if one.support >= other.support else (other, one)
    traits = _averaged(one, other)
    both = len({*one.provenance.runs} & {*other.provenance.runs})
    return replace(
        one,
        signature=_shared(lead.signature, rest.signature, traits),
        context=_shared(lead.context, rest.context, traits),
        heuristics=_agreed(lead.heuristics, rest.heuristics)[:MOST_HEURISTICS],
        traits=traits,
        codes=tuple(_agreed(lead.codes, rest.codes)[:MOST_CODES]),
        module=lead.module or rest.module,
        correction=lead.correction or rest.correction,
        provenance=_joined(one.provenance, other.provenance),
        version=one.version + 1,
        support=max(one.support + other.support - both, one.support, other.support),
        confirmed=one.confirmed + other.confirmed,
        refuted=one.refuted + other.refuted,
        used=one.used + other.used,
        status=next(status for status in _STATUSES if status in (one.status, other.status)),
        created_at=min(one.created_at, other.created_at),
        updated_at=max(one.updated_at, other.updated_at),
        used_at=max((at for at in (one.used_at, other.used_at) if at is not None), default=None),
    )


def _averaged(one: Schema, other: Schema) -> dict[str, float]:
    total = one.support + other.support
    names = ordered({*one.traits, *other.traits})
    sums = ((name, one.traits.get(name, 0.0) * one.support, other.traits.get(name, 0.0)) for name in names)
    return {name: min(1.0, (mine + theirs * other.support) / total) for name, mine, theirs in sums}


def _joined(one: Provenance, other: Provenance) -> Provenance:
    methods = {method for each in (one, other) for method in each.method.split("+")}
    return Provenance(
        method="+".join(sorted(methods)),
        runs=tuple(sorted({*one.runs, *other.runs})),
        groups=tuple(sorted({*one.groups, *other.groups})),
        origin=one.origin,
    )


def _shared(lead: Sequence[str], rest: Sequence[str], traits: Mapping[str, float]) -> tuple[str, ...]:
    """Sentences of the vocabulary whose trait still shows, in its order, and then some of the others."""
    names = {name for text in (*lead, *rest) if (name := VOCABULARY.get(text)) is not None}
    by_name = {VOCABULARY[text]: text for text in (*lead, *rest) if text in VOCABULARY}
    told = [by_name[name] for name in ordered(names) if traits.get(name, 0.0) >= SHOWN]
    others = _agreed(_free(lead), _free(rest))
    worded = [text for text in others if is_words(text)][:1]
    free = [text for text in others if not is_words(text)][:MOST_FREE]
    room = MOST_SENTENCES - len(free) - len(worded)
    return (*told[:room], *free, *worded)


def _free(sentences: Iterable[str]) -> list[str]:
    return [text for text in sentences if text not in VOCABULARY]


def _agreed(lead: Sequence[str], rest: Sequence[str]) -> tuple[str, ...]:
    """Those in both, then those of ``lead``, then those of ``rest``, each once."""
    return tuple(dict.fromkeys((*(text for text in lead if text in rest), *lead, *rest)))
