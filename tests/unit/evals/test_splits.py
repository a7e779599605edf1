from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from agentguard.errors import EvaluationError
from agentguard.evals.splits import (
    assign_folds,
    exclude_shared_questions,
    list_groups,
    shuffle_record_labels,
    split_for_cross_validation,
)
from agentguard.trajectory.grouping import normalize_group_key
from tests.unit.evals.cases import record, records

names = st.sampled_from(["Who?", "who", " WHO ", "what", "What!", "when", "where", "why", "how", ""])


@pytest.mark.parametrize(
    ("one", "other"),
    [("What is  it?", "what is it"), ("“What”—is it", '"What" - is it?'), ("ﬁle", "file"), ("a_b", "A b")],
)
def test_spelling_does_not_separate_a_question(one: str, other: str) -> None:
    assert normalize_group_key(one) == normalize_group_key(other)


def test_runs_without_group_are_separate() -> None:
    assert len(set(list_groups([record("a", group="?"), record("b", group="!!")]))) == 2


@settings(max_examples=60, deadline=None)
@given(st.lists(names, min_size=6, max_size=40), st.integers(2, 4), st.integers())
def test_folds_never_leak_a_group(texts: list[str], folds: int, seed: int) -> None:
    held = [record(f"r{i}", group=text) for i, text in enumerate(texts)]
    groups = list_groups(held)
    if len(set(groups)) < folds:
        return
    dealt = assign_folds(groups, folds, seed=seed)
    assert sorted(i for part in dealt for i in part) == list(range(len(held)))
    for part in dealt:
        inside, outside = {groups[i] for i in part}, {groups[i] for i in range(len(held)) if i not in part}
        assert part
        assert not inside & outside


@settings(max_examples=20, deadline=None)
@given(st.lists(names, min_size=12, max_size=30), st.integers(0, 99))
def test_cross_validation_trains_only_on_other_questions(texts: list[str], seed: int) -> None:
    held = [record(f"r{i}", group=text) for i, text in enumerate(texts)]
    if len(set(list_groups(held))) < 3:
        return
    splits = split_for_cross_validation(held, folds=3, repeats=2, seed=seed)
    for repeat in (0, 1):
        assert sorted(i for s in splits if s.repeat == repeat for i in s.test) == list(range(len(held)))
    for split in splits:
        scored = {normalize_group_key(held[i].annotation.group or "") for i in split.test} - {""}
        learnt = {normalize_group_key(r.annotation.group or "") for r in split.train or ()}
        assert not scored & learnt
        assert len(split.test) + len(split.train or ()) == len(held)


def test_seed_determines_the_folds() -> None:
    groups = [str(i) for i in range(20)]
    assert assign_folds(groups, 4, seed=1) == assign_folds(groups, 4, seed=1)
    assert assign_folds(groups, 4, seed=1) != assign_folds(groups, 4, seed=2)
    assert [len(part) for part in assign_folds(groups, 4, seed=1)] == [5, 5, 5, 5]


@pytest.mark.parametrize(("groups", "folds"), [(["a", "a", "b"], 3), (["a", "b"], 1), ([], 2)])
def test_too_few_groups_are_rejected(groups: list[str], folds: int) -> None:
    with pytest.raises(EvaluationError):
        assign_folds(groups, folds, seed=0)


def test_disjoint_split_removes_test_questions_from_training() -> None:
    train = [record("a", group="What is it?"), record("b", group="Other"), record("c", group="?")]
    test = [record("x", group="what is it"), record("y", group="!")]
    assert [r.trajectory.id for r in exclude_shared_questions(train, test)] == ["b", "c"]


def test_shuffled_labels_remain_possible_and_keep_the_runs() -> None:
    held = [record(f"r{i}", step=i, steps=i + 1, failed=i % 2 == 0) for i in range(20)]
    dealt = shuffle_record_labels(held, seed=0)
    assert [r.trajectory for r in dealt] == [r.trajectory for r in held]
    assert [r.annotation.group for r in dealt] == [r.annotation.group for r in held]
    moved = 0
    for before, after in zip(held, dealt, strict=True):
        cause = after.annotation.root_cause
        assert cause is not None
        assert cause.step is not None
        assert cause.step < len(after.trajectory.steps)
        assert cause.agent == after.trajectory.steps[cause.step].agent
        moved += cause.step != before.annotation.root_cause.step  # type: ignore[union-attr]
    assert moved > 10
    assert sum(bool(r.annotation.failed) for r in dealt) == 10
    assert shuffle_record_labels(records(), seed=1) == shuffle_record_labels(records(), seed=1)
