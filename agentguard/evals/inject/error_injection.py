"""Injection of one error at a known step into a run that passed; the annotation records the change.

After CORRECT-Error (arXiv 2509.24088), for any format that agentguard reads and without a language model.
The rewritten trajectory contains no mark of the change: its id is a hash, and only the annotation lists the
changes. No detector, judge or feature reads the annotation.
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
from agentguard.trajectory.event_log.recorder import build_events
from agentguard.trajectory.model import Annotation, Branch, Record, Trajectory
from agentguard.trajectory.safe_json import dumps

_MAX_DRAWS = 3
INJECTED = "injected"
"""Key of ``Annotation.extra`` for the changes, and value of its ``origin``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewritePlan:
    """Settings of the injection.

    Attributes:
        rates: weight of each edit by name.
        per_run: number of draws for each run. Each draw yields another edit or step, or nothing if none of
            three edits applies to the run.
        seed: the same seed yields the same runs, independent of the order and of the other runs.
        assume_passed: accepts runs without a label for passed or failed.
    """

    rates: Mapping[str, float] = field(default_factory=parse_rates)
    per_run: int = 1
    seed: int = 0
    assume_passed: bool = False


def rewrite_record(record: Record, plan: RewritePlan | None = None) -> Iterator[Record]:
    """Yield failed runs made from one that passed; yield nothing if no drawn edit applies.

    Raises:
        InputError: the run failed, or is not known to have passed.
    """
    plan = plan or RewritePlan()
    check_passed(record, assume=plan.assume_passed)
    source = compute_fingerprint(record.trajectory)
    used_edits: set[tuple[str, int]] = set()
    for number in range(plan.per_run):
        rng = random.Random(f"{plan.seed}:{source}:{number}")  # noqa: S311  (a draw, not a secret)
        edit_step = _draw_edit(record.trajectory, plan.rates, used_edits, rng)
        if edit_step is None:
            continue
        used_edits.add(edit_step)
        yield apply_edit(record, get_edit_registry().get(edit_step[0]), edit_step[1], rng=rng, source=source)


def apply_edit(
    record: Record, edit: Edit, step: int, *, rng: random.Random | None = None, source: str = ""
) -> Record:
    """Inject one error into one step of a run.

    Args:
        record: the run; the function does not check that it passed.
        edit: the kind of error.
        step: the step that receives the error.
        rng: draws the choices that the edit leaves open.
        source: the fingerprint of the run, if it is already known.

    Raises:
        InputError: the edit does not apply to that step.
    """
    rewritten = edit.apply(record.trajectory, step, rng or random.Random(0))  # noqa: S311
    run = record.trajectory
    name = _build_id(source or compute_fingerprint(run), edit.name, step, rewritten)
    branches, dropped = _select_branches(run, rewritten.step)
    annotation = _build_annotation(run, edit, rewritten, dropped)
    return Record(
        trajectory=replace(run, id=name, steps=rewritten.steps, branches=branches),
        annotation=Annotation(
            failed=True,
            root_cause=rewritten.cause,
            failures=(rewritten.cause,),
            answer=record.annotation.answer,
            group=derive_group(record),
            extra={"origin": INJECTED, INJECTED: annotation},
        ),
    )


def copy_passed_record(record: Record) -> Record:
    """Return the run that passed, under an id of the same form as those of rewritten runs."""
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
    """Raise InputError unless a run is known to have passed, or ``assume`` is set and it has no label."""
    if record.annotation.failed:
        raise InputError("the run failed already", hint="errors can only be injected into passed runs")
    if record.annotation.failed is None and not assume:
        raise InputError(
            "the run is not known to have passed", hint="--assume-passed treats such runs as passed"
        )


def derive_group(record: Record) -> str:
    """Return the group that keeps a run and all runs made from it in one part of a split."""
    return record.annotation.group or record.trajectory.task or record.trajectory.id


def compute_fingerprint(run: Trajectory) -> str:
    """Return the SHA-256, in hex, of the recorded data of a run."""
    digest = hashlib.sha256()
    for event in build_events(Record(trajectory=run)):
        digest.update(dumps(event) + b"\n")
    return digest.hexdigest()


def rewrite_records(
    records: Iterable[Record], plan: RewritePlan, *, with_passed: bool = False
) -> Iterator[Record]:
    """Apply `rewrite_record` to many runs; ``with_passed`` yields each source before its rewritten runs."""
    for record in records:
        rewritten_records = list(rewrite_record(record, plan))
        if with_passed:
            yield copy_passed_record(record)
        yield from rewritten_records


def _draw_edit(
    run: Trajectory, rates: Mapping[str, float], taken: set[tuple[str, int]], rng: random.Random
) -> tuple[str, int] | None:
    """Draw an edit by its rate and a step that it applies to; each step is equally likely.

    The number of draws is limited. Otherwise edits that apply everywhere (a call that cannot be parsed) would
    displace the edits that rarely apply.
    """
    names, weights = list(rates), list(rates.values())
    for name in rng.choices(names, weights, k=_MAX_DRAWS):
        edit = get_edit_registry().get(name)
        for step in rng.sample(range(len(run.steps)), len(run.steps)):
            if (name, step) not in taken and edit.applies(run, step):
                return name, step
    return None


def _build_annotation(run: Trajectory, edit: Edit, rewritten: RewrittenRun, dropped: int) -> dict[str, Any]:
    changes = [change.as_dict() for change in rewritten.changes]
    if dropped:
        branch_change = FieldChange(
            step=rewritten.step, field="branches", before=f"{dropped} left out", after=None
        )
        changes.append(branch_change.as_dict())
    return {
        "edit": edit.name,
        "step": rewritten.step,
        "fields": changes,
        "tail": rewritten.tail.value,
        "source_run": run.id,
    }


def _select_branches(run: Trajectory, first: int) -> tuple[tuple[Branch, ...], int]:
    """Return the branches that fork before the error, and the number of the other branches."""
    branches: dict[str, Branch] = {}
    for branch in run.branches:
        is_before_error = branch.fork_step <= first if branch.parent is None else branch.parent in branches
        if is_before_error:
            branches[branch.id] = branch
    return tuple(branches.values()), len(run.branches) - len(branches)


def _build_id(source: str, edit: str, step: int, rewritten: RewrittenRun) -> str:
    changed = repr([change.as_dict() for change in rewritten.changes])
    return hashlib.sha256(f"{source}:{edit}:{step}:{changed}".encode()).hexdigest()[:16]
