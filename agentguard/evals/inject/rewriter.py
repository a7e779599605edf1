"""Failed runs from recorded ones that passed: one error is put in at a known step, and the record says so.

After CORRECT-Error (arXiv 2509.24088), for any format that agentguard reads and without a language model. The
rewritten trajectory carries no sign of it: its id is a hash, and what was changed stands in the annotation,
where no detector, judge or feature reads it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agentguard.errors import InputError
from agentguard.evals.inject.edits.base import Edit, FieldChange, RewrittenRun, get_edit_registry
from agentguard.evals.inject.rates import parse_rates
from agentguard.trajectory._safe_json import dumps
from agentguard.trajectory.event_log.events import build_events
from agentguard.trajectory.model import Annotation, Branch, Record, Trajectory

_MAX_DRAWS = 3
INJECTED = "injected"
"""Key of ``Annotation.extra`` for what was rewritten, and value of its ``origin``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewritePlan:
    """How runs are rewritten.

    Attributes:
        rates: edit name to its weight.
        per_run: how often an edit is drawn for each run, each time for an error or a step of its own; if
            none of three draws fits the run, nothing is made.
        seed: the same seed makes the same runs, in whatever order and company they come.
        assume_passed: takes runs of which nobody knows whether they passed.
    """

    rates: Mapping[str, float] = field(default_factory=parse_rates)
    per_run: int = 1
    seed: int = 0
    assume_passed: bool = False


def rewrite_record(record: Record, plan: RewritePlan | None = None) -> Iterator[Record]:
    """Yield failed runs made from one that passed; none if no edit that is drawn applies.

    Raises:
        InputError: the run failed, or is not known to have passed.
    """
    plan = plan or RewritePlan()
    check_passed(record, assume=plan.assume_passed)
    source = compute_fingerprint(record.trajectory)
    taken: set[tuple[str, int]] = set()
    for number in range(plan.per_run):
        rng = random.Random(f"{plan.seed}:{source}:{number}")  # noqa: S311  (a draw, not a secret)
        found = _draw_edit(record.trajectory, plan.rates, taken, rng)
        if found is None:
            continue
        taken.add(found)
        yield apply_edit(record, get_edit_registry().get(found[0]), found[1], rng=rng, source=source)


def apply_edit(
    record: Record, edit: Edit, step: int, *, rng: random.Random | None = None, source: str = ""
) -> Record:
    """Put one error into one step of a run.

    Args:
        record: the run; that it passed is not asked here.
        edit: the kind of error.
        step: the step it is put into.
        rng: draws what the edit leaves open.
        source: the run's `fingerprint`, if it is already known.

    Raises:
        InputError: the edit does not apply to that step.
    """
    made = edit.apply(record.trajectory, step, rng or random.Random(0))  # noqa: S311
    run = record.trajectory
    name = _build_id(source or compute_fingerprint(run), edit.name, step, made)
    branches, dropped = _select_branches(run, made.step)
    told = _build_annotation(run, edit, made, dropped)
    return Record(
        trajectory=replace(run, id=name, steps=made.steps, branches=branches),
        annotation=Annotation(
            failed=True,
            root_cause=made.cause,
            failures=(made.cause,),
            answer=record.annotation.answer,
            group=derive_group(record),
            extra={"origin": INJECTED, INJECTED: told},
        ),
    )


def copy_passed_record(record: Record) -> Record:
    """The run that passed, under an id like those of the rewritten ones, to be kept beside them."""
    run = record.trajectory
    return Record(
        trajectory=replace(run, id=hashlib.sha256(compute_fingerprint(run).encode()).hexdigest()[:16]),
        annotation=Annotation(
            failed=False,
            answer=record.annotation.answer,
            group=derive_group(record),
            extra={"origin": "recorded", "source_run": run.id},
        ),
    )


def check_passed(record: Record, *, assume: bool = False) -> None:
    """Raise InputError unless a run is known, or may be assumed, to have passed."""
    if record.annotation.failed:
        raise InputError("the run failed already", hint="only runs that passed can be given an error")
    if record.annotation.failed is None and not assume:
        raise InputError(
            "the run is not known to have passed", hint="--assume-passed takes such runs as passed"
        )


def derive_group(record: Record) -> str:
    """What keeps a run and all that is made from it in one part of a split."""
    return record.annotation.group or record.trajectory.task or record.trajectory.id


def compute_fingerprint(run: Trajectory) -> str:
    """SHA-256, in hex, of everything that was recorded of a run."""
    digest = hashlib.sha256()
    for event in build_events(Record(trajectory=run)):
        digest.update(dumps(event) + b"\n")
    return digest.hexdigest()


def rewrite_records(
    records: Iterable[Record], plan: RewritePlan, *, with_passed: bool = False
) -> Iterator[Record]:
    """`rewritten` over many runs; ``with_passed`` yields each source too, before what is made of it."""
    for record in records:
        made = list(rewrite_record(record, plan))
        if with_passed:
            yield copy_passed_record(record)
        yield from made


def _draw_edit(
    run: Trajectory, rates: Mapping[str, float], taken: set[tuple[str, int]], rng: random.Random
) -> tuple[str, int] | None:
    """An edit, by its rate, and a step it applies to; every step is as likely.

    A few draws and no more: if one went on until something fits, the errors that fit everywhere (a call that
    cannot be parsed) would crowd out the ones that seldom do.
    """
    names, weights = list(rates), list(rates.values())
    for name in rng.choices(names, weights, k=_MAX_DRAWS):
        edit = get_edit_registry().get(name)
        for step in rng.sample(range(len(run.steps)), len(run.steps)):
            if (name, step) not in taken and edit.applies(run, step):
                return name, step
    return None


def _build_annotation(run: Trajectory, edit: Edit, made: RewrittenRun, dropped: int) -> dict[str, Any]:
    changes = [change.as_dict() for change in made.changes]
    if dropped:
        lost = FieldChange(step=made.step, field="branches", before=f"{dropped} left out", after=None)
        changes.append(lost.as_dict())
    return {
        "edit": edit.name,
        "step": made.step,
        "fields": changes,
        "tail": made.tail.value,
        "source_run": run.id,
    }


def _select_branches(run: Trajectory, first: int) -> tuple[tuple[Branch, ...], int]:
    """The branches that left the run before the error, and how many did not."""
    kept: dict[str, Branch] = {}
    for branch in run.branches:
        stays = branch.fork_step <= first if branch.parent is None else branch.parent in kept
        if stays:
            kept[branch.id] = branch
    return tuple(kept.values()), len(run.branches) - len(kept)


def _build_id(source: str, edit: str, step: int, made: RewrittenRun) -> str:
    changed = repr([change.as_dict() for change in made.changes])
    return hashlib.sha256(f"{source}:{edit}:{step}:{changed}".encode()).hexdigest()[:16]
