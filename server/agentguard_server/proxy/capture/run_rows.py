"""Conversion of captured runs into rows: each step becomes a row once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from agentguard.store.db.rows import ClearRunRow, Row, RunRow, StepRow
from agentguard.store.trajectory_mapping import build_run_row, build_step_row
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Step, Trajectory
from agentguard.trajectory.serialization import decode_meta, decode_step

Redact = Callable[[dict[str, Any]], dict[str, Any]]


class RunRowBuilder:
    """Builder of the rows of one run; an `agentguard.intercept.passive_interceptor.StepSink`.

    Args:
        meta: the run without its steps.
        tenant: tenant of the run.
        on_change: called on each change; the callee must later call `build_rows` and `commit_rows`.
        may_replace: True if the store may have a run of the same ID, which this run replaces.

    Attributes:
        id: ID of the run.
        tenant: tenant of the run.
        has_tool_calls: True if the run has tool calls.
        has_ended: True if the run has ended.
    """

    __slots__ = (
        "_is_new",
        "_is_resident",
        "_length",
        "_may_replace",
        "_meta",
        "_new_steps",
        "_on_change",
        "_run_row",
        "_stored_steps",
        "has_ended",
        "has_tool_calls",
        "id",
        "tenant",
    )  # fmt: skip

    def __init__(
        self,
        meta: Trajectory,
        tenant: str,
        on_change: Callable[[RunRowBuilder], None],
        *,
        may_replace: bool = True,
    ) -> None:
        self.id, self.tenant, self._may_replace = meta.id, tenant, may_replace
        self._meta, self._on_change = meta, on_change
        self._run_row = build_run_row(meta, tenant=tenant)
        self._is_new, self.has_tool_calls, self.has_ended, self._is_resident = True, False, False, True
        self._length = 0
        self._new_steps: list[Step] = []
        self._stored_steps: list[Step] = []
        on_change(self)

    def add(self, step: Step) -> None:
        """Add the next step."""
        self._new_steps.append(step)
        self.has_tool_calls = self.has_tool_calls or bool(step.tool_calls)
        self._on_change(self)

    def end(self) -> None:
        """End the run."""
        self.has_ended = True
        self._on_change(self)

    def build_rows(self) -> list[RunRow | StepRow]:
        """Return the new rows, not yet redacted."""
        steps = [build_step_row(self.id, step, tenant=self.tenant) for step in self._new_steps]
        return [self._run_row, *steps] if self._is_new else list(steps)

    def commit_rows(self, rows: Sequence[RunRow | StepRow], *, is_redacted: bool) -> list[Row]:
        """Return the rows to write, given the rows of `build_rows` after redaction."""
        fresh, self._is_new = self._is_new, False
        if fresh:
            self._replace_run_row(rows[0])
        steps = rows[1:] if fresh else rows
        self._length += len(steps)
        self._remember_steps(steps, is_redacted=is_redacted)
        made: list[Row] = (
            [ClearRunRow(tenant=self.tenant, run_id=self.id)] if fresh and self._may_replace else []
        )
        if self.has_ended:
            made.append(_build_ended_row(self._run_row, self._length))
        elif fresh:
            made.append(self._run_row)
        return [*made, *steps]

    def release_trajectory(self) -> Trajectory | None:
        """Return the run as it is stored and release its steps; None if it must be read from the store."""
        if not self._is_resident:
            return None
        meta, steps = self._meta, self._stored_steps
        self._is_resident, self._stored_steps = False, []
        return Trajectory(
            id=meta.id,
            format=meta.format,
            task=meta.task,
            steps=tuple(steps),
            tools=meta.tools,
            system_prompts=meta.system_prompts,
            extra=meta.extra,
        )

    def _replace_run_row(self, row: Row) -> None:
        if row is not self._run_row and isinstance(row, RunRow):
            self._run_row, self._meta = row, decode_meta(JsonNode.from_value(row.data))

    def _remember_steps(self, rows: Sequence[Row], *, is_redacted: bool) -> None:
        """Remember the stored steps, unless redaction has copied the long texts of a run with tool calls."""
        given, self._new_steps = self._new_steps, []
        self._is_resident = self._is_resident and not (self.has_tool_calls and is_redacted)
        if not self._is_resident:
            self._stored_steps = []
            return
        self._stored_steps += (
            [decode_step(JsonNode.from_value(row.data)) for row in rows] if is_redacted else given
        )


def _build_ended_row(row: RunRow, length: int) -> RunRow:
    """Build the row of an ended run; `dataclasses.replace` would take five times as long."""
    return RunRow(
        tenant=row.tenant,
        created_at=row.created_at,
        data={**row.data, "ended": True},
        id=row.id,
        format=row.format,
        task=row.task,
        group=row.group,
        failed=row.failed,
        length=length,
        annotation=row.annotation,
    )


def redact_row(row: RunRow | StepRow, redact: Redact) -> RunRow | StepRow:
    """Return a row with its secrets redacted."""
    data = redact(dict(row.data))
    if data == row.data:
        return row
    if isinstance(row, StepRow):
        return replace(row, data=data, source=data["source"], agent=data["agent"])
    return build_run_row(decode_meta(JsonNode.from_value(data)), tenant=row.tenant, created_at=row.created_at)
