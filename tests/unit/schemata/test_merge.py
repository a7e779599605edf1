"""A merge keeps the majority of the failures' content, and every count."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import permutations

import pytest
from hypothesis import given, strategies as st

from agentguard.errors import InputError
from agentguard.schemata.merge import (
    MAX_CODES,
    MAX_FREE_SENTENCES,
    MAX_HEURISTICS,
    MAX_SENTENCES,
    merge_schemata,
)
from agentguard.schemata.model import ErrorSchema, Provenance, SchemaOrigin, SchemaStatus
from agentguard.schemata.profiles.step_profile import (
    VOCABULARY,
    format_signature,
    format_words,
    get_sentence,
    is_words_sentence,
)
from agentguard.schemata.profiles.traits import TRAITS, TraitPart

SELF = [trait.name for trait in TRAITS if trait.part is TraitPart.SELF][:30]


def schema(run: str, traits: dict[str, float] | None = None, **other: object) -> ErrorSchema:
    traits = {"role:worker": 1.0} if traits is None else traits
    made = ErrorSchema(
        id=f"id-{run}",
        signature=format_signature(traits, ""),
        traits=traits,
        provenance=Provenance(method="embedded", runs=(run,), groups=(f"task {run}",)),
    )
    return replace(made, **other)  # type: ignore[arg-type]


def test_sentence_remains_while_most_share_it() -> None:
    one, two, three = (schema(run, {"role:worker": 1.0, "form:code": 1.0}) for run in "abc")
    lone = schema("d", {"role:worker": 1.0, "form:asks": 1.0})
    merged = reduce(merge_schemata, (lone, one, two, three))
    assert merged.signature == ("A worker speaks.", "It brings code.")
    assert merged.traits == {"role:worker": 1.0, "form:code": 0.75, "form:asks": 0.25}
    assert (merged.id, merged.support, merged.version) == ("id-d", 4, 4)


def test_counts_and_times_are_added() -> None:
    one = schema("a", confirmed=2, refuted=1, used=3, created_at=5.0, updated_at=6.0, used_at=None)
    two = schema("b", confirmed=1, used=4, created_at=2.0, updated_at=9.0, used_at=8.0, version=7)
    merged = merge_schemata(one, two)
    assert (merged.confirmed, merged.refuted, merged.used) == (3, 1, 7)
    assert (merged.created_at, merged.updated_at, merged.used_at) == (2.0, 9.0, 8.0)
    assert merged.version == 2
    assert merged.provenance == Provenance(
        method="embedded", runs=("a", "b"), groups=("task a", "task b"), origin=SchemaOrigin.NATURAL
    )


def test_shared_run_counts_once() -> None:
    one, two = merge_schemata(schema("a"), schema("b")), merge_schemata(schema("b"), schema("c"))
    assert merge_schemata(one, two).support == 3
    assert merge_schemata(schema("a"), schema("a")).support == 1


def test_llm_text_is_partly_kept() -> None:
    chat = Provenance(method="chat:m", runs=("x",))
    mine = [f"It says this {word}." for word in "abcdefghijkl"]
    one = schema("a", signature=("A worker speaks.", *mine, format_words("assume")), support=3)
    two = schema("b", signature=("A worker speaks.", mine[11], "Another."), provenance=chat)
    merged = merge_schemata(two, one)
    assert merged.signature[0] == "A worker speaks."
    assert merged.signature[1:3] == (mine[11], mine[0])
    assert len(merged.signature) == 1 + MAX_FREE_SENTENCES + 1
    assert is_words_sentence(merged.signature[-1])
    assert merged.provenance.method == "chat:m+embedded"


def test_lists_are_bounded() -> None:
    every = {trait.name: 1.0 for trait in TRAITS}
    one = schema("a", every, heuristics=tuple("abcdef"), codes=tuple(f"t:a{i}" for i in range(5)))
    two = schema("b", every, heuristics=tuple("fghijk"), codes=tuple(f"t:b{i}" for i in range(5)))
    merged = merge_schemata(one, two)
    assert len(merged.signature) <= MAX_SENTENCES
    assert len(merged.heuristics) == MAX_HEURISTICS
    assert merged.heuristics[0] == "f"
    assert len(merged.codes) == MAX_CODES


def test_retired_schema_is_revived_by_an_active_one() -> None:
    retired = schema("a", status=SchemaStatus.RETIRED)
    assert merge_schemata(retired, schema("b")).status is SchemaStatus.ACTIVE
    assert merge_schemata(retired, retired).status is SchemaStatus.RETIRED


def test_natural_and_injected_failures_are_never_merged() -> None:
    other = schema("b", provenance=Provenance(method="embedded", runs=("b",), origin=SchemaOrigin.INJECTED))
    with pytest.raises(InputError, match="cannot be merged"):
        merge_schemata(schema("a"), other)


weights = st.dictionaries(st.sampled_from(SELF), st.floats(0, 1), max_size=8)


@given(st.lists(weights, min_size=2, max_size=4))
def test_merge_order_hardly_matters(many: list[dict[str, float]]) -> None:
    schemata = [schema(str(i), traits) for i, traits in enumerate(many)]
    results = [reduce(merge_schemata, order) for order in permutations(schemata)]
    first = results[0]
    for other in results[1:]:
        assert other.support == first.support == len(many)
        assert other.provenance == first.provenance
        assert other.traits == pytest.approx(first.traits)
        assert all(0 <= weight <= 1 for weight in other.traits.values())
    for result in results:
        for sentence in result.signature:
            assert result.traits[VOCABULARY[sentence]] >= 0.5
            assert get_sentence(VOCABULARY[sentence]) == sentence
