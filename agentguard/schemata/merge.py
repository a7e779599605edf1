"""Merge of two schemata of one kind of failure. The result has the content that most failures share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from agentguard.errors import InputError
from agentguard.schemata.model import ErrorSchema, Provenance, SchemaStatus
from agentguard.schemata.profiles.step_profile import (
    MIN_SENTENCE_WEIGHT,
    VOCABULARY,
    is_words_sentence,
    sort_traits,
)

MAX_SENTENCES: Final = 60
MAX_FREE_SENTENCES: Final = 8
"""Maximum number of sentences outside the vocabulary, such as those of a chat judge."""

MAX_HEURISTICS: Final = 8
MAX_CODES: Final = 6
_STATUSES: Final = (SchemaStatus.ACTIVE, SchemaStatus.QUARANTINED, SchemaStatus.RETIRED)


def merge_schemata(one: ErrorSchema, other: ErrorSchema) -> ErrorSchema:
    """Return the merge of two schemata, with the id of ``one``; deterministic.

    Traits are averaged by support. The merge has a sentence of the vocabulary if the average weight of its
    trait is high enough. Of other sentences, those in both schemata come first, then those of the schema with
    more support. Counts are added; a run in both schemata counts once in the support.

    Raises:
        InputError: their failures are of different origins.
    """
    if one.provenance.origin is not other.provenance.origin:
        raise InputError(
            f"a schema of {one.provenance.origin} failures and one of {other.provenance.origin} failures "
            "cannot be merged",
            hint="use separate stores",
        )
    lead, follower = (one, other) if one.support >= other.support else (other, one)
    traits = _average_traits(one, other)
    shared_runs = len({*one.provenance.runs} & {*other.provenance.runs})
    return replace(
        one,
        signature=_select_shared(lead.signature, follower.signature, traits),
        context=_select_shared(lead.context, follower.context, traits),
        heuristics=_merge_ranked(lead.heuristics, follower.heuristics)[:MAX_HEURISTICS],
        traits=traits,
        codes=tuple(_merge_ranked(lead.codes, follower.codes)[:MAX_CODES]),
        module=lead.module or follower.module,
        correction=lead.correction or follower.correction,
        provenance=_join_provenance(one.provenance, other.provenance),
        version=one.version + 1,
        support=max(one.support + other.support - shared_runs, one.support, other.support),
        confirmed=one.confirmed + other.confirmed,
        refuted=one.refuted + other.refuted,
        used=one.used + other.used,
        status=next(status for status in _STATUSES if status in (one.status, other.status)),
        created_at=min(one.created_at, other.created_at),
        updated_at=max(one.updated_at, other.updated_at),
        used_at=max((at for at in (one.used_at, other.used_at) if at is not None), default=None),
    )


def _average_traits(one: ErrorSchema, other: ErrorSchema) -> dict[str, float]:
    total = one.support + other.support
    names = sort_traits({*one.traits, *other.traits})
    sums = ((name, one.traits.get(name, 0.0) * one.support, other.traits.get(name, 0.0)) for name in names)
    return {
        name: min(1.0, (weight + other_weight * other.support) / total) for name, weight, other_weight in sums
    }


def _join_provenance(one: Provenance, other: Provenance) -> Provenance:
    methods = {method for provenance in (one, other) for method in provenance.method.split("+")}
    return Provenance(
        method="+".join(sorted(methods)),
        runs=tuple(sorted({*one.runs, *other.runs})),
        groups=tuple(sorted({*one.groups, *other.groups})),
        origin=one.origin,
    )


def _select_shared(lead: Sequence[str], rest: Sequence[str], traits: Mapping[str, float]) -> tuple[str, ...]:
    """Return the vocabulary sentences whose trait has enough weight, and then some of the others."""
    names = {name for text in (*lead, *rest) if (name := VOCABULARY.get(text)) is not None}
    by_name = {VOCABULARY[text]: text for text in (*lead, *rest) if text in VOCABULARY}
    vocabulary_sentences = [
        by_name[name] for name in sort_traits(names) if traits.get(name, 0.0) >= MIN_SENTENCE_WEIGHT
    ]
    others = _merge_ranked(_select_free_sentences(lead), _select_free_sentences(rest))
    word_sentences = [text for text in others if is_words_sentence(text)][:1]
    free_sentences = [text for text in others if not is_words_sentence(text)][:MAX_FREE_SENTENCES]
    limit = MAX_SENTENCES - len(free_sentences) - len(word_sentences)
    return (*vocabulary_sentences[:limit], *free_sentences, *word_sentences)


def _select_free_sentences(sentences: Iterable[str]) -> list[str]:
    return [text for text in sentences if text not in VOCABULARY]


def _merge_ranked(lead: Sequence[str], rest: Sequence[str]) -> tuple[str, ...]:
    """Return the sentences in both lists, then those of ``lead``, then those of ``rest``, each once."""
    return tuple(dict.fromkeys((*(text for text in lead if text in rest), *lead, *rest)))
