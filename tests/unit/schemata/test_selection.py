"""Selection under a budget: coverage, distance to the optimum, and determinism."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from agentguard.errors import InputError
from agentguard.schemata import selection as module
from agentguard.schemata.model import ErrorSchema, Provenance
from agentguard.schemata.selection import estimate_dependability, select_schemata
from agentguard.schemata.vectors.base import normalize_rows


def schema(name: str, **more: Any) -> ErrorSchema:
    return ErrorSchema(id=name, signature=("x",), provenance=Provenance(method="embedded", runs=()), **more)


def some(count: int, **more: Any) -> list[ErrorSchema]:
    return [schema(f"s{i:04d}", **more) for i in range(count)]


def clusters(sizes: list[int], *, dims: int = 32, spread: float = 0.05, seed: int = 0) -> Any:
    """Return rows in tight clusters around random directions, and the cluster of each."""
    rng = np.random.default_rng(seed)
    centres = np.eye(dims)[: len(sizes)]
    of = np.repeat(np.arange(len(sizes)), sizes)
    return normalize_rows(centres[of] + rng.normal(size=(len(of), dims)) * spread), of


def worth(kept: list[int], vectors: Any, hard: Any, sure: Any) -> float:
    """Return the objective of the module's docstring, over all pairs."""
    alike = np.maximum(vectors.astype(np.float64) @ vectors.T.astype(np.float64), 0) * (1 + sure) / 2
    return float(((1 + hard) / 2 * alike[:, kept].max(axis=1)).sum()) if kept else 0.0


class TestCriteria:
    def test_diversity_keeps_every_kind_before_repeating_one(self) -> None:
        vectors, of = clusters([40, 20, 10, 5, 1])
        kept = select_schemata(some(76), vectors, 5)
        assert sorted(of[int(name[1:])] for name in kept) == [0, 1, 2, 3, 4]

    def test_difficulty_prefers_the_harder_of_two_equal_kinds(self) -> None:
        vectors, of = clusters([10, 10, 10])
        hard = {f"s{i:04d}": float(kind == 2) for i, kind in enumerate(of)}
        (first, *_) = select_schemata(some(30), vectors, 3, difficulty=hard)
        assert of[int(first[1:])] == 2

    def test_dependability_prefers_the_confirmed_of_two_similar_schemata(self) -> None:
        vectors, _ = clusters([4, 4], spread=0)
        held = some(8)
        held[2], held[7] = schema("s0002", confirmed=3), schema("s0007", confirmed=1)
        held[0] = schema("s0000", refuted=5)
        assert set(select_schemata(held, vectors, 2)) == {"s0002", "s0007"}

    def test_mapping_overrides_difficulty_of_schemata(self) -> None:
        vectors, _ = clusters([4], spread=0)
        held = some(4)
        held[1] = schema("s0001", confirmed=9)
        assert select_schemata(held, vectors, 1) == ("s0001",)
        assert select_schemata(held, vectors, 1, dependability={"s0001": 0.0}) == ("s0000",)

    def test_failures_without_entry_count_as_hard(self) -> None:
        vectors, of = clusters([5, 5])
        easy = {f"s{i:04d}": 0.0 for i, kind in enumerate(of) if kind == 0}
        (first, _) = select_schemata(some(10), vectors, 2, difficulty=easy)
        assert of[int(first[1:])] == 1


class TestBudget:
    @pytest.mark.parametrize(("budget", "count"), [(0, 0), (1, 1), (6, 6), (7, 7), (100, 7)])
    def test_selection_has_the_requested_size(self, budget: int, count: int) -> None:
        vectors, _ = clusters([3, 4])
        kept = select_schemata(some(7), vectors, budget)
        assert len(kept) == len(set(kept)) == count

    def test_remaining_budget_is_filled_with_the_most_valuable_schemata(self) -> None:
        held = [*some(5), schema("t", confirmed=4)]
        assert select_schemata(held, np.zeros((6, 4)), 2) == ("t", "s0000")

    def test_empty_input_gives_empty_selection(self) -> None:
        assert select_schemata([], np.zeros((0, 4)), 3) == ()

    def test_full_selection_is_ordered_by_value(self) -> None:
        held = [schema("a"), schema("b", confirmed=1), schema("c", refuted=1)]
        assert select_schemata(held, np.eye(3), 3) == ("b", "a", "c")


@st.composite
def problems(draw: st.DrawFn) -> tuple[Any, Any, Any, int]:
    count = draw(st.integers(2, 9))
    numbers = st.lists(st.floats(0, 1), min_size=count, max_size=count)
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    vectors = normalize_rows(rng.normal(size=(count, 3)))
    return vectors, np.array(draw(numbers)), np.array(draw(numbers)), draw(st.integers(1, count - 1))


class TestGreedy:
    @given(problem=problems())
    def test_greedy_reaches_the_proven_share_of_the_optimum(self, problem: tuple[Any, Any, Any, int]) -> None:
        vectors, hard, sure, budget = problem
        held = some(len(vectors))
        kept = [int(name[1:]) for name in self.chosen(held, vectors, hard, sure, budget)]
        best = max(
            worth(list(others), vectors, hard, sure) for others in combinations(range(len(held)), budget)
        )
        assert worth(kept, vectors, hard, sure) >= (1 - 1 / np.e) * best - 1e-6

    def chosen(
        self, held: list[ErrorSchema], vectors: Any, hard: Any, sure: Any, budget: int
    ) -> tuple[str, ...]:
        names = [one.id for one in held]
        return select_schemata(
            held,
            vectors,
            budget,
            difficulty=dict(zip(names, hard, strict=True)),
            dependability=dict(zip(names, sure, strict=True)),
        )

    def test_lazy_greedy_equals_greedy(self) -> None:
        vectors, _ = clusters([9, 7, 5, 3], spread=0.4)
        rng = np.random.default_rng(2)
        hard, sure = rng.random(24), rng.random(24)
        kept: list[int] = []
        while len(kept) < 8:
            rest = [i for i in range(24) if i not in kept]
            kept.append(max(rest, key=lambda i: (worth([*kept, i], vectors, hard, sure), -i)))
        lazily = self.chosen(some(24), vectors, hard, sure, 8)
        assert [int(name[1:]) for name in lazily] == kept

    def test_nearest_neighbour_approximation_loses_little(self, monkeypatch: pytest.MonkeyPatch) -> None:
        vectors, _ = clusters([60, 50, 40, 30, 20], spread=0.2, seed=4)
        even = np.ones(200)
        exact = select_schemata(some(200), vectors, 20)
        monkeypatch.setattr(module, "_MAX_NEAREST", 20)
        monkeypatch.setattr(module, "_MIN_NEAREST", 20)
        near = select_schemata(some(200), vectors, 20)
        reached = [worth([int(n[1:]) for n in kept], vectors, even, even) for kept in (near, exact)]
        assert reached[0] > 0.97 * reached[1]

    def test_input_order_does_not_matter(self) -> None:
        vectors, _ = clusters([30, 20, 10], spread=0.3)
        held = [schema(f"s{i:04d}", confirmed=i % 3, refuted=i % 2) for i in range(60)]
        hard = {one.id: i % 7 / 6 for i, one in enumerate(held)}
        straight = select_schemata(held, vectors, 12, difficulty=hard)
        for seed in range(3):
            order = np.random.default_rng(seed).permutation(60)
            assert select_schemata([held[i] for i in order], vectors[order], 12, difficulty=hard) == straight


class TestDependability:
    def test_unknown_schema_is_neutral(self) -> None:
        assert estimate_dependability(schema("a")) == 0.5

    def test_dependability_rises_with_confirmation_and_support_and_falls_with_refutation(self) -> None:
        plain = estimate_dependability(schema("a"))
        assert estimate_dependability(schema("a", confirmed=1)) == pytest.approx(2 / 3)
        assert estimate_dependability(schema("a", refuted=1)) == pytest.approx(1 / 3)
        assert (
            plain
            < estimate_dependability(schema("a", support=2))
            < estimate_dependability(schema("a", confirmed=1))
        )

    def test_support_alone_outweighs_at_most_two_refutations(self) -> None:
        assert estimate_dependability(schema("a", support=10**6, refuted=3)) < 0.5
        assert estimate_dependability(schema("a", support=10**6, refuted=1)) > 0.5


class TestErrors:
    @pytest.mark.parametrize(
        ("vectors", "budget", "more", "message"),
        [
            (np.eye(3), 1, {}, "field vectors: expected a row for each of 2 schemata"),
            (np.ones(2), 1, {}, "field vectors: expected a row"),
            (np.full((2, 2), np.nan), 1, {}, "field vectors: a number is not finite"),
            (np.eye(2), -1, {}, "field budget: the budget is -1"),
            (np.eye(2), 1, {"difficulty": {"s0001": 1.5}}, "field difficulty.s0001: 1.5 is not in"),
            (np.eye(2), 1, {"dependability": {"s0000": float("nan")}}, "field dependability.s0000: nan"),
        ],
    )
    def test_invalid_input_is_named(
        self, vectors: Any, budget: int, more: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(InputError) as told:
            select_schemata(some(2), vectors, budget, **more)
        assert message in str(told.value)

    def test_duplicate_ids_are_rejected(self) -> None:
        with pytest.raises(InputError, match="same id"):
            select_schemata([schema("a"), schema("a")], np.eye(2), 1)
