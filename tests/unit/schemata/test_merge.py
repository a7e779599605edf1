"""Merging keeps what most of the failures share, and every count."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentguard.errors import InputError
from agentguard.schemata.merge import MOST_CODES, MOST_FREE, MOST_HEURISTICS, MOST_SENTENCES, merge
from agentguard.schemata.model import Origin, Provenance, Schema, Status
from agentguard.schemata.portrait import VOCABULARY, in_words, is_words, sentence_of, signature_of
from agentguard.schemata.traits import TRAITS, Part

SELF = [trait.name for trait in TRAITS if trait.part is Part.SELF][:30]


def schema(run: str, traits: dict[str, float] | None = None, **other: object) -> Schema:
    traits = {"role:worker": 1.0} if traits is None else traits
    made = Schema(
        id=f"id-{run}",
        signature=signature_of(traits, ""),
        traits=traits,
        provenance=Provenance(method="embedded", runs=(run,), groups=(f"task {run}",)),
    )
    return replace(made, **other)  # type: ignore[arg-type]


def test_a_sentence_stays_while_most_share_it() -> None:
    one, two, three = (schema(run, {"role:worker": 1.0, "form:code": 1.0}) for run in "abc")
    lone = schema("d", {"role:worker": 1.0, "form:asks": 1.0})
    merged = reduce(merge, (lone, one, two, three))
    assert merged.signature == ("A worker speaks.", "It brings code.")
    assert merged.traits == {"role:worker": 1.0, "form:code": 0.75, "form:asks": 0.25}
    assert (merged.id, merged.support, merged.version) == ("id-d", 4, 4)


def test_counts_and_times_are_added_up() -> None:
    one = schema("a", confirmed=2, refuted=1, used=3, created_at=5.0, updated_at=6.0, used_at=None)
    two = schema("b", confirmed=1, used=4, created_at=2.0, updated_at=9.0, used_at=8.0, version=7)
    merged = merge(one, two)
    assert (merged.confirmed, merged.refuted, merged.used) == (3, 1, 7)
    assert (merged.created_at, merged.updated_at, merged.used_at) == (2.0, 9.0, 8.0)
    assert merged.version == 2
    assert merged.provenance == Provenance(
        method="embedded", runs=("a", "b"), groups=("task a", "task b"), origin=Origin.NATURAL
    )


def test_a_run_behind_both_counts_once() -> None:
    one, two = merge(schema("a"), schema("b")), merge(schema("b"), schema("c"))
    assert merge(one, two).support == 3
    assert merge(schema("a"), schema("a")).support == 1


def test_what_a_chat_judge_wrote_is_kept_in_part() -> None:
    chat = Provenance(method="chat:m", runs=("x",))
    mine = [f"It says this {word}." for word in "abcdefghijkl"]
    one = schema("a", signature=("A worker speaks.", *mine, in_words("assume")), support=3)
    two = schema("b", signature=("A worker speaks.", mine[11], "Another."), provenance=chat)
    merged = merge(two, one)
    assert merged.signature[0] == "A worker speaks."
    assert merged.signature[1:3] == (mine[11], mine[0])
    assert len(merged.signature) == 1 + MOST_FREE + 1
    assert is_words(merged.signature[-1])
    assert merged.provenance.method == "chat:m+embedded"


def test_lists_are_bounded() -> None:
    every = {trait.name: 1.0 for trait in TRAITS}
    one = schema("a", every, heuristics=tuple("abcdef"), codes=tuple(f"t:a{i}" for i in range(5)))
    two = schema("b", every, heuristics=tuple("fghijk"), codes=tuple(f"t:b{i}" for i in range(5)))
    merged = merge(one, two)
    assert len(merged.signature) <= MOST_SENTENCES
    assert len(merged.heuristics) == MOST_HEURISTICS
    assert merged.heuristics[0] == "f"
    assert len(merged.codes) == MOST_CODES


def test_a_retired_schema_comes_back_with_an_active_one() -> None:
    retired = schema("a", status=Status.RETIRED)
    assert merge(retired, schema("b")).status is Status.ACTIVE
    assert merge(retired, retired).status is Status.RETIRED


def test_natural_and_injected_failures_are_never_mixed() -> None:
    other = schema("b", provenance=Provenance(method="embedded", runs=("b",), origin=Origin.INJECTED))
    with pytest.raises(InputError, match="cannot be merged"):
        merge(schema("a"), other)


weights = st.dictionaries(st.sampled_from(SELF), st.floats(0, 1), max_size=8)


@given(st.lists(weights, min_size=2, max_size=4))
def test_the_order_of_merging_hardly_matters(many: list[dict[str, float]]) -> None:
    schemata = [schema(str(i), traits) for i, traits in enumerate(many)]
    results = [reduce(merge, order) for order in permutations(schemata)]
    first = results[0]
    for other in results[1:]:
        assert other.support == first.support == len(many)
        assert other.provenance == first.provenance
        assert other.traits == pytest.approx(first.traits)
        assert all(0 <= weight <= 1 for weight in other.traits.values())
    for result in results:
        for sentence in result.signature:
            assert result.traits[VOCABULARY[sentence]] >= 0.5
            assert sentence_of(VOCABULARY[sentence]) == sentence
