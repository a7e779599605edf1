"""The index of schemata against a reference that compares everything in double precision."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentguard.errors import ConfigError, InputError
from agentguard.schemata.index import SchemaIndex
from agentguard.schemata.model import ErrorSchema, Match, Profile, Provenance, SchemaOrigin, SchemaStatus
from agentguard.schemata.vectors.base import HashingVectoriser
from agentguard.schemata.vectors.combined import encode_combined, extract_text
from agentguard.schemata.vectors.tfidf_svd import TfidfSvd
from agentguard.trajectory.grouping import normalize_group_key

WORDS = ("error", "ignored", "plan", "loop", "answer", "tool", "unchecked", "guess")
GROUPS = ("What is it?", "what is  IT", "Who was there?", "?!", "Wo?")


def schema(name: str, text: str = "tool error ignored", **more: Any) -> ErrorSchema:
    groups, origin = more.pop("groups", ()), more.pop("origin", SchemaOrigin.NATURAL)
    provenance = Provenance(method="embedded", runs=(f"run-{name}",), groups=tuple(groups), origin=origin)
    return ErrorSchema(id=name, signature=(text,), provenance=provenance, **more)


def index_of(*schemata: ErrorSchema, **options: Any) -> SchemaIndex:
    made = SchemaIndex(**options)
    made.add(schemata)
    return made


def named(matches: Sequence[Match]) -> list[str]:
    return [match.schema.id for match in matches]


texts = st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)
trait_maps = st.dictionaries(st.sampled_from(["finding:a", "finding:b"]), st.floats(0, 1), max_size=2)
schemata = st.builds(
    schema,
    st.sampled_from([f"s{i:02d}" for i in range(30)]),
    texts,
    groups=st.lists(st.sampled_from(GROUPS), max_size=2, unique=True),
    origin=st.sampled_from(SchemaOrigin),
    status=st.sampled_from(SchemaStatus),
    traits=trait_maps,
    context=st.sampled_from([(), ("it had a plan",)]),
)
asked_items = texts | st.builds(Profile, text=texts, traits=trait_maps) | schemata


class Reference:
    """Reference implementation of the index: one schema at a time."""

    def __init__(self, traits: float) -> None:
        self.held: dict[str, ErrorSchema] = {}
        self.traits = traits

    def vector(self, item: Any) -> Any:
        return _vector(
            extract_text(item), () if isinstance(item, str) else tuple(item.traits.items()), self.traits
        )

    def search(
        self, item: Any, k: int, *, leave_out: Sequence[str], origin: SchemaOrigin | None, only_active: bool
    ) -> list[tuple[str, float]]:
        out = {normalize_group_key(group) for group in leave_out} - {""}
        scored = [
            (-float((self.vector(held) * self.vector(item)).sum()), held.id)
            for held in self.held.values()
            if not out & {normalize_group_key(group) for group in held.provenance.groups}
            and origin in (None, held.provenance.origin)
            and (not only_active or held.status is SchemaStatus.ACTIVE)
        ]
        return [(name, -far) for far, name in sorted(scored)[:k]]


@cache
def _vector(text: str, facts: tuple[tuple[str, float], ...], traits: float) -> Any:
    made = encode_combined(
        [Profile(text=text, traits=dict(facts))], HashingVectoriser(dims=64), trait_weight=traits
    )
    return made[0].astype(np.float64)


class Machine(RuleBasedStateMachine):
    """State machine: adds, removes and replaces in any order, with queries in between."""

    @initialize(traits=st.sampled_from([0.0, 0.3, 1.0]))
    def start(self, traits: float) -> None:
        self.index, self.model = (
            SchemaIndex(HashingVectoriser(dims=64), trait_weight=traits),
            Reference(traits),
        )

    @rule(new=st.lists(schemata, max_size=20, unique_by=lambda s: s.id))
    def add(self, new: list[ErrorSchema]) -> None:
        fresh = [held for held in new if held.id not in self.model.held]
        self.index.add(fresh)
        self.model.held |= {held.id: held for held in fresh}

    @precondition(lambda self: self.model.held)
    @rule(data=st.data())
    def add_again_is_refused(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from(sorted(self.model.held)))
        with pytest.raises(InputError, match="already"):
            self.index.add([schema("new"), schema(known)])

    @precondition(lambda self: self.model.held)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        gone = data.draw(st.lists(st.sampled_from(sorted(self.model.held)), max_size=10))
        self.index.remove(gone)
        for name in set(gone):
            del self.model.held[name]

    @rule(new=st.lists(schemata, max_size=5, unique_by=lambda s: s.id))
    def replace(self, new: list[ErrorSchema]) -> None:
        known = [held for held in new if held.id in self.model.held]
        self.index.replace(known)
        self.model.held |= {held.id: held for held in known}

    @rule(
        asked=st.lists(asked_items, max_size=3),
        k=st.integers(1, 12),
        leave_out=st.lists(st.sampled_from(GROUPS), max_size=2),
        origin=st.none() | st.sampled_from(SchemaOrigin),
        only_active=st.booleans(),
    )
    def search(
        self, asked: list[Any], k: int, leave_out: list[str], origin: SchemaOrigin | None, only_active: bool
    ) -> None:
        found = self.index.search(asked, k, excluded_groups=leave_out, origin=origin, only_active=only_active)
        assert len(found) == len(asked)
        for item, matches in zip(asked, found, strict=True):
            wanted = self.model.search(item, k, leave_out=leave_out, origin=origin, only_active=only_active)
            assert named(matches) == [name for name, _ in wanted]
            assert [m.similarity for m in matches] == pytest.approx([s for _, s in wanted], abs=1e-6)
            assert all(m.schema is self.model.held[m.schema.id] for m in matches)

    @invariant()
    def holds_the_same(self) -> None:
        assert len(self.index) == len(self.model.held)
        assert [held.id for held in self.index] == sorted(self.model.held)
        ids, vectors = self.index.vectors()
        for name, vector in zip(ids, vectors, strict=True):
            assert np.allclose(vector, self.model.vector(self.model.held[name]), atol=1e-6)


TestAgainstTheModel = Machine.TestCase
TestAgainstTheModel.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


class TestSearch:
    def test_nearest_schema_comes_first(self) -> None:
        held = index_of(schema("a", "plan leaves out a part"), schema("b"), schema("c", "loop of one call"))
        (found,) = held.search(["a tool error was ignored"], 2)
        assert named(found)[0] == "b"
        assert found[0].similarity > 0.99 > found[1].similarity

    def test_empty_index_finds_nothing(self) -> None:
        assert SchemaIndex().search(["error", "plan"], 3) == ((), ())
        assert SchemaIndex().vectors()[0] == ()
        emptied = index_of(schema("a"))
        emptied.remove(["a"])
        assert emptied.search(["error"], 3) == ((),)

    def test_empty_query_list_gives_empty_result(self) -> None:
        assert index_of(schema("a")).search([], 3) == ()

    def test_k_above_size_returns_all(self) -> None:
        held = index_of(schema("b"), schema("a"))
        assert named(held.search(["error"], 50)[0]) == ["a", "b"]

    def test_ties_are_ordered_by_id(self) -> None:
        names = [f"s{i:03d}" for i in range(200)]
        order = np.random.default_rng(3).permutation(names).tolist()
        held = index_of(*(schema(name) for name in order))
        for batch in (["error"], ["error"] * 7, ["plan", "error ignored", "error"]):
            assert named(held.search(batch, 30)[-1]) == names[:30]

    def test_text_without_known_words_has_no_similarity(self) -> None:
        held = index_of(schema("b"), schema("a"), schema("c", groups=["Q"]))
        (found,) = held.search(["?"], 2, excluded_groups=["q"])
        assert [(m.schema.id, m.similarity) for m in found] == [("a", 0.0), ("b", 0.0)]

    def test_excluded_group_still_gives_k_results(self) -> None:
        near = [schema(f"n{i}", "tool error ignored", groups=["The question?"]) for i in range(40)]
        far = [schema(f"f{i}", f"plan loop {i}") for i in range(5)]
        held = index_of(*near, *far)
        (found,) = held.search(["tool error ignored"], 5, excluded_groups=["the QUESTION"])
        assert sorted(named(found)) == [s.id for s in far]

    def test_merged_schema_is_excluded_for_each_of_its_groups(self) -> None:
        held = index_of(schema("a", groups=["One?", "Two?"]), schema("b"))
        for question in ("one", "two"):
            assert named(held.search(["error"], 2, excluded_groups=[question])[0]) == ["b"]
        assert len(held.search(["error"], 2, excluded_groups=["?!"])[0]) == 2

    def test_excluded_group_may_be_a_string(self) -> None:
        held = index_of(schema("a", groups=["One?"]), schema("b"))
        assert named(held.search(["error"], 2, excluded_groups="One?")[0]) == ["b"]

    def test_retired_schemata_and_other_origins_are_skipped(self) -> None:
        held = index_of(
            schema("a", status=SchemaStatus.RETIRED),
            schema("b", origin=SchemaOrigin.INJECTED),
            schema("c"),
        )
        assert named(held.search(["error"], 9)[0]) == ["b", "c"]
        assert named(held.search(["error"], 9, origin=SchemaOrigin.NATURAL)[0]) == ["c"]
        assert named(held.search(["error"], 9, only_active=False)[0]) == ["a", "b", "c"]

    def test_batched_queries_equal_single_queries(self, monkeypatch: Any) -> None:
        from agentguard.schemata import index

        rng = np.random.default_rng(1)
        held = index_of(*(schema(f"s{i}", " ".join(rng.choice(WORDS, 4))) for i in range(60)))
        asked = [" ".join(rng.choice(WORDS, 3)) for _ in range(50)]
        whole = held.search(asked, 4)
        monkeypatch.setattr(index, "_MAX_BATCH_CELLS", 130)
        assert held.search(asked, 4) == whole
        assert tuple(held.search([text], 4)[0] for text in asked) == whole

    def test_insertion_order_does_not_matter(self) -> None:
        rng = np.random.default_rng(5)
        some = [schema(f"s{i}", " ".join(rng.choice(WORDS, 4))) for i in range(80)]
        straight, crooked = index_of(*some), SchemaIndex()
        for held in reversed(some):
            crooked.add([held])
        crooked.remove([s.id for s in some[:50]])
        crooked.add(some[:50])
        asked = [" ".join(rng.choice(WORDS, 3)) for _ in range(20)]
        assert straight.search(asked, 9) == crooked.search(asked, 9)

    @given(text=st.text(st.characters(), max_size=300))
    def test_any_text_can_be_queried_and_stored(self, text: str) -> None:
        held = index_of(schema("a", text), schema("b"), trait_weight=0.2)
        (found,) = held.search([text], 2)
        assert len(found) == 2
        assert all(-1 <= match.similarity <= 1 for match in found)

    def test_huge_text_is_bounded(self) -> None:
        huge = "word " * 10**6
        assert len(index_of(schema("a", huge)).search([huge], 1)[0]) == 1

    @pytest.mark.parametrize("k", [0, -1])
    def test_k_below_one_is_rejected(self, k: int) -> None:
        with pytest.raises(ConfigError, match="k is"):
            SchemaIndex().search(["x"], k)

    @pytest.mark.parametrize("one", ["error", Profile(text="error"), schema("a")])
    def test_single_item_instead_of_list_is_rejected(self, one: Any) -> None:
        with pytest.raises(InputError, match="one item"):
            index_of(schema("a")).search(one, 1)

    def test_invalid_query_is_rejected(self) -> None:
        with pytest.raises(InputError, match="record 1: int is not a valid query"):
            index_of(schema("a")).search(["error", 3], 1)  # type: ignore[list-item]


class TestTraits:
    def test_similarity_is_the_weighted_mean_of_text_and_traits(self) -> None:
        one = schema("a", "tool error ignored", traits={"finding:a": 1.0})
        asked = Profile(text="tool error ignored", traits={"finding:b": 0.4})
        shares = [
            index_of(one, trait_weight=share).search([asked], 1)[0][0].similarity for share in (0, 0.25, 1)
        ]
        text, traits = shares[0], shares[2]
        assert text == pytest.approx(1, abs=1e-6)
        assert abs(traits) < 0.4
        assert shares[1] == pytest.approx(0.75 * text + 0.25 * traits, abs=1e-6)

    def test_missing_part_uses_the_other_alone(self) -> None:
        bare = schema("a", "tool error ignored")
        assert index_of(bare, trait_weight=0.5).search([bare], 1)[0][0].similarity == pytest.approx(
            1, abs=1e-6
        )

    def test_traits_alone_can_find(self) -> None:
        held = index_of(
            schema("a", "", traits={"x": 1.0}), schema("b", "", traits={"y": 1.0}), trait_weight=0.5
        )
        assert named(held.search([Profile(text="", traits={"y": 0.1})], 1)[0]) == ["b"]

    @pytest.mark.parametrize("weight", [float("nan"), float("inf")])
    def test_invalid_weight_is_rejected(self, weight: float) -> None:
        with pytest.raises(InputError, match=r"record 0, field traits\.x: the weight is not finite"):
            index_of(schema("a", traits={"x": weight}), trait_weight=0.5)

    @pytest.mark.parametrize(
        "options", [{"trait_weight": -0.1}, {"trait_weight": 1.1}, {"diversity": float("nan")}]
    )
    def test_shares_out_of_range_are_rejected(self, options: dict[str, float]) -> None:
        with pytest.raises(ConfigError, match="expected a number in"):
            SchemaIndex(**options)


class TestDiversity:
    def test_diverse_results_differ_from_each_other(self) -> None:
        same = [schema(f"a{i}", "tool error ignored") for i in range(5)]
        held = [*same, schema("b", "tool error ignored plan loop"), schema("c", "tool guess")]
        asked = ["tool error ignored"]
        assert named(index_of(*held).search(asked, 3)[0]) == ["a0", "a1", "a2"]
        assert named(index_of(*held, diversity=0.8).search(asked, 3)[0]) == ["a0", "c", "b"]

    def test_diverse_search_gives_k_allowed_results(self) -> None:
        held = [schema(f"a{i}", groups=["Q"] if i % 2 else []) for i in range(50)]
        (found,) = index_of(*held, diversity=0.3).search(["error"], 20, excluded_groups=["q"])
        assert len(set(named(found))) == 20
        assert all(not match.schema.provenance.groups for match in found)


class TestChanges:
    def test_failed_change_changes_nothing(self) -> None:
        held = index_of(schema("a"), schema("b"))
        for change in (
            lambda: held.add([schema("c"), schema("a")]),
            lambda: held.add([schema("c"), schema("c")]),
            lambda: held.replace([schema("a", "plan"), schema("c")]),
            lambda: held.replace([schema("a", "plan"), schema("a")]),
            lambda: held.remove(["a", "c"]),
        ):
            with pytest.raises(InputError, match=r"id '(a|c)'"):
                change()
            assert [s.signature for s in held] == [("tool error ignored",)] * 2

    def test_changed_counts_are_not_encoded_again(self) -> None:
        class Counting(HashingVectoriser):
            seen: list[str] = []  # noqa: RUF012

            def encode(self, texts: Sequence[str]) -> Any:
                self.seen.extend(texts)
                return super().encode(texts)

        held = index_of(schema("a"), schema("b"), vectoriser=Counting())
        Counting.seen.clear()
        held.replace([schema("a", used=3, status=SchemaStatus.RETIRED), schema("b", "plan")])
        assert Counting.seen == ["plan"]
        assert named(held.search(["error"], 2)[0]) == ["b"]
        assert held.get("a") is not None
        assert held.get("a").used == 3  # type: ignore[union-attr]

    def test_removed_group_of_new_version_is_forgotten(self) -> None:
        held = index_of(schema("a", groups=["Q"]))
        held.replace([schema("a", groups=["R"])])
        assert len(held.search(["error"], 1, excluded_groups=["Q"])[0]) == 1
        assert len(held.search(["error"], 1, excluded_groups=["R"])[0]) == 0

    def test_empty_changes_are_accepted(self) -> None:
        held = index_of(schema("a"))
        held.add([])
        held.replace([])
        held.remove([])
        assert len(held) == 1

    def test_concurrent_searches_and_writes_are_consistent(self) -> None:
        held = index_of(*(schema(f"k{i}", f"plan {i}") for i in range(20)))
        stop, errors = threading.Event(), []

        def write() -> None:
            place = 0
            while not stop.is_set():
                held.add([schema(f"w{place}", "loop")])
                held.remove([f"w{place}"])
                place += 1

        def read() -> None:
            try:
                for _ in range(300):
                    (found,) = held.search(["plan"], 20)
                    assert len(found) == 20
                    assert all(match.similarity > 0.3 for match in found)
            except BaseException as error:  # reported by the main thread
                errors.append(error)

        writer, readers = threading.Thread(target=write), [threading.Thread(target=read) for _ in range(2)]
        for thread in (writer, *readers):
            thread.start()
        for thread in readers:
            thread.join()
        stop.set()
        writer.join()
        assert not errors


class TestVectorisers:
    @pytest.mark.parametrize("traits", [0.0, 0.5])
    def test_default_vectoriser_has_256_dimensions_with_or_without_traits(self, traits: float) -> None:
        assert SchemaIndex(trait_weight=traits).encode(["plan"]).shape == (1, 256)

    def test_trainable_vectoriser_is_fitted_on_stored_schemata(self) -> None:
        some = [schema("a", "plan leaves out a part"), schema("b"), schema("c", "loop of one call")]
        held = SchemaIndex.fit(some, TfidfSvd(), trait_weight=0.1)
        assert named(held.search(["errors of a tool: error ignored"], 1)[0]) == ["b"]

    @pytest.mark.parametrize(
        "rows", [np.ones((3, 4)), np.ones(1), np.full((1, 4), np.nan)], ids=["too many", "flat", "nan"]
    )
    def test_invalid_vectors_are_rejected(self, rows: Any) -> None:
        class Wrong(HashingVectoriser):
            name = "wrong"

            def encode(self, texts: Sequence[str]) -> Any:
                return rows

        with pytest.raises(ConfigError, match="'wrong' did not return a finite row"):
            index_of(schema("a"), vectoriser=Wrong())

    def test_changing_dimensions_are_rejected(self) -> None:
        class Growing(HashingVectoriser):
            name = "growing"
            dims = 2

            def encode(self, texts: Sequence[str]) -> Any:
                self.dims += 1
                return np.ones((len(texts), self.dims), np.float32)

        held = index_of(schema("a"), vectoriser=Growing())
        for change in (
            lambda: held.search(["x"], 1),
            lambda: held.add([schema("b")]),
            lambda: held.replace([replace(schema("a"), signature=("new",))]),
        ):
            with pytest.raises(ConfigError, match="'growing' changed the length"):
                change()
        assert [s.id for s in held] == ["a"]
        assert held.get("a").signature == ("tool error ignored",)  # type: ignore[union-attr]
