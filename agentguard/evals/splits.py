"""Splits that keep the runs of one question together, so that training never includes a scored question."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentguard.errors import EvaluationError
from agentguard.trajectory.grouping import normalize_group_key
from agentguard.trajectory.model import Annotation, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One split: positions in the scored set, and the training runs (None: no training)."""

    repeat: int
    fold: int
    test: tuple[int, ...]
    train: tuple[Record, ...] | None


def list_groups(records: Sequence[Record]) -> tuple[str, ...]:
    """Return the group of each record; a group without letters and digits makes the record its own group."""
    return tuple(
        normalize_group_key(record.annotation.group or "") or f"\0{index}"
        for index, record in enumerate(records)
    )


def assign_folds(groups: Sequence[str], folds: int, *, seed: int | str) -> tuple[tuple[int, ...], ...]:
    """Distribute positions over ``folds`` parts of similar size; equal groups share a part.

    Args:
        groups: group of each position.
        folds: number of parts, at least 2.
        seed: the same seed gives the same parts.

    Raises:
        EvaluationError: there are fewer groups than folds, or fewer than two folds.
    """
    members: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    if folds < 2 or len(members) < folds:
        raise EvaluationError(
            f"{folds} folds need at least 2 folds and {folds} groups; there are {len(members)}"
        )
    order = sorted(members)
    random.Random(f"folds:{seed}").shuffle(order)  # noqa: S311  (a split, not a secret)
    order.sort(key=lambda group: -len(members[group]))
    dealt: list[list[int]] = [[] for _ in range(folds)]
    for group in order:
        min(dealt, key=len).extend(members[group])
    return tuple(tuple(sorted(part)) for part in dealt)


def split_for_cross_validation(
    records: Sequence[Record], *, folds: int, repeats: int, seed: int
) -> tuple[Split, ...]:
    """Return ``repeats`` times ``folds`` splits; every run is scored once per repeat."""
    groups = list_groups(records)
    splits = []
    for repeat in range(repeats):
        for fold, test in enumerate(assign_folds(groups, folds, seed=f"{seed}:{repeat}")):
            test_indices = set(test)
            train = tuple(record for index, record in enumerate(records) if index not in test_indices)
            splits.append(Split(repeat=repeat, fold=fold, test=test, train=train))
    return tuple(splits)


def exclude_shared_questions(train: Sequence[Record], test: Sequence[Record]) -> tuple[Record, ...]:
    """Return ``train`` without the runs whose question occurs in ``test``."""
    test_groups = {group for group in list_groups(test) if not group.startswith("\0")}
    return tuple(r for r, group in zip(train, list_groups(train), strict=True) if group not in test_groups)


def shuffle_record_labels(records: Sequence[Record], *, seed: int | str) -> tuple[Record, ...]:
    """Return the same runs with their labels shuffled, so that the labels carry no information.

    Step, codes and outcome move. If the new run does not have the step, the function draws one. The agent
    is that of the new step, so that every label is possible for its run.
    """
    rng = random.Random(f"labels:{seed}")  # noqa: S311
    donors = list(records)
    rng.shuffle(donors)
    return tuple(
        replace(record, annotation=_borrow_labels(record, donor.annotation, rng))
        for record, donor in zip(records, donors, strict=True)
    )


def _borrow_labels(record: Record, other: Annotation, rng: random.Random) -> Annotation:
    cause, steps = other.root_cause, record.trajectory.steps
    if cause is not None and cause.step is not None and steps:
        step = cause.step if cause.step < len(steps) else rng.randrange(len(steps))
        cause = replace(cause, step=step, agent=steps[step].agent if cause.agent else None, reason="")
    return replace(
        record.annotation, failed=other.failed, root_cause=cause, failures=(), step_labels={}, modes={}
    )
