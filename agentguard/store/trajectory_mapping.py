"""Lossless mapping between trajectories with annotations and rows of the store."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from agentguard.errors import FormatError
from agentguard.store.db.rows import BranchRow, ClearRunRow, Row, RunRow, StepRow
from agentguard.trajectory.grouping import normalize_group_key
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Annotation, Branch, Record, Step, Trajectory
from agentguard.trajectory.serialization import (
    decode_annotation,
    decode_meta,
    decode_step,
    encode_annotation,
    encode_meta,
    encode_step,
)

_NO_ANNOTATION: Final = Annotation()


def build_run_rows(record: Record, *, tenant: str = "", created_at: float | None = None) -> tuple[Row, ...]:
    """Return the rows of a whole run; they replace the stored run of the same id."""
    run, written_at = record.trajectory, time.time() if created_at is None else created_at
    rows: list[Row] = [
        ClearRunRow(tenant=tenant, created_at=written_at, run_id=run.id),
        build_run_row(run, record.annotation, tenant=tenant, created_at=written_at),
    ]
    rows += (build_step_row(run.id, step, tenant=tenant, created_at=written_at) for step in run.steps)
    for place, branch in enumerate(run.branches):
        rows.append(
            replace(build_branch_row(run.id, branch, tenant=tenant, created_at=written_at), place=place)
        )
        rows += (
            build_step_row(run.id, s, branch_id=branch.id, tenant=tenant, created_at=written_at)
            for s in branch.steps
        )
    return tuple(rows)


def build_run_row(
    run: Trajectory,
    annotation: Annotation | None = None,
    *,
    tenant: str = "",
    created_at: float | None = None,
) -> RunRow:
    """Return the row of a run without its steps, for its begin and for changes of its metadata."""
    judged = _NO_ANNOTATION if annotation is None else annotation
    return RunRow(
        tenant=tenant,
        created_at=time.time() if created_at is None else created_at,
        data=encode_meta(run),
        id=run.id,
        format=run.format,
        task=run.task,
        group=normalize_group_key(judged.group or run.task),
        failed=judged.failed,
        length=len(run.steps),
        annotation={} if annotation is None else encode_annotation(annotation),
    )


def build_step_row(
    run_id: str, step: Step, *, branch_id: str = "", tenant: str = "", created_at: float | None = None
) -> StepRow:
    """Return the row of a step of the current branch, or of the branch ``branch_id``."""
    return StepRow(
        tenant=tenant,
        created_at=time.time() if created_at is None else created_at,
        data=encode_step(step),
        run_id=run_id,
        line=branch_id,
        index=step.index,
        source=step.source.value,
        agent=step.agent,
    )


def build_branch_row(
    run_id: str, branch: Branch, *, tenant: str = "", created_at: float | None = None, takes: bool = False
) -> BranchRow:
    """Return the row of a branch; ``takes`` moves steps of the current branch to it, as in a rollback."""
    data = {"reason": branch.reason} if branch.reason else {}
    return BranchRow(
        tenant=tenant,
        created_at=time.time() if created_at is None else created_at,
        data={**data, "extra": dict(branch.extra)} if branch.extra else data,
        run_id=run_id,
        id=branch.id,
        fork_step=branch.fork_step,
        parent=branch.parent,
        takes=takes,
    )


def build_trajectory(run: RunRow, steps: Sequence[StepRow], branches: Iterable[BranchRow]) -> Trajectory:
    """Return the trajectory of these rows. Raises FormatError with the run id if they are inconsistent."""
    try:
        lines: dict[str, list[Step]] = {}
        for row in steps:
            lines.setdefault(row.line, []).append(decode_step(JsonNode.from_value(row.data)))
        return replace(
            decode_meta(JsonNode.from_value(run.data)),
            steps=tuple(lines.get("", ())),
            branches=tuple(_build_branch(row, lines.get(row.id, ())) for row in branches),
        )
    except FormatError as error:
        raise error.with_location(file=f"stored run {run.id}") from None


def decode_run_annotation(run: RunRow) -> Annotation:
    """Return the annotation of the run."""
    return decode_annotation(JsonNode.from_value(run.annotation))


def _build_branch(row: BranchRow, steps: Sequence[Step]) -> Branch:
    node = JsonNode.from_value(row.data)
    return Branch(
        id=row.id,
        fork_step=row.fork_step,
        # The rows are sorted by index, including those that were moved from the current branch.
        steps=tuple(steps),
        parent=row.parent,
        reason=node.text_or("reason"),
        extra=node.node_or("extra").data,
    )
