"""Runs as rows and back, without loss: steps, branches, and beside them how a data set judged the run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from agentguard.errors import FormatError
from agentguard.store.db.rows import BranchRow, ClearRunRow, Row, RunRow, StepRow
from agentguard.trajectory._json_node import JsonNode
from agentguard.trajectory.grouping import normalize_group_key
from agentguard.trajectory.model import Annotation, Branch, Record, Step, Trajectory
from agentguard.trajectory.serialization import (
    decode_annotation,
    decode_meta,
    decode_step,
    encode_annotation,
    encode_meta,
    encode_step,
)


def build_run_rows(record: Record, *, tenant: str = "", created_at: float | None = None) -> tuple[Row, ...]:
    """A whole run; it replaces what is stored under its id."""
    run, made = record.trajectory, time.time() if created_at is None else created_at
    rows: list[Row] = [
        ClearRunRow(tenant=tenant, created_at=made, run_id=run.id),
        build_run_row(run, record.annotation, tenant=tenant, created_at=made),
    ]
    rows += (build_step_row(run.id, step, tenant=tenant, created_at=made) for step in run.steps)
    for place, branch in enumerate(run.branches):
        rows.append(replace(build_branch_row(run.id, branch, tenant=tenant, created_at=made), place=place))
        rows += (
            build_step_row(run.id, s, branch_id=branch.id, tenant=tenant, created_at=made)
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
    """A run without its steps; written when a run begins, and again when more is known of it."""
    judged = annotation or Annotation()
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
        annotation=encode_annotation(judged),
    )


def build_step_row(
    run_id: str, step: Step, *, branch_id: str = "", tenant: str = "", created_at: float | None = None
) -> StepRow:
    """A step of the live line, or of the branch ``line``."""
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
    """A branch without its steps; with ``takes`` the live line's steps become its own, as in a rollback."""
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
    """The run of these rows. Raises FormatError, naming the run, if they do not make one."""
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
    """How a data set judged the run."""
    return decode_annotation(JsonNode.from_value(run.annotation))


def _build_branch(row: BranchRow, steps: Sequence[Step]) -> Branch:
    node = JsonNode.from_value(row.data)
    return Branch(
        id=row.id,
        fork_step=row.fork_step,
        # Moved from the live line, or written under the branch: either way their indices tell the order.
        steps=tuple(steps),
        parent=row.parent,
        reason=node.text_or("reason"),
        extra=node.node_or("extra").data,
    )
