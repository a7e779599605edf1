"""Runs that have passed, as rows: what is new of a run is made into rows once, and written with others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from agentguard.store.db.rows import ClearRow, Row, RunRow, StepRow
from agentguard.store.trajectory_mapping import head_row, step_row
from agentguard.trajectory._json_node import JsonNode
from agentguard.trajectory.model import Step, Trajectory
from agentguard.trajectory.serialization import decode_meta, decode_step

Clean = Callable[[dict[str, Any]], dict[str, Any]]


class RunRowBuilder:
    """Takes what happens in one run; an `agentguard.runtime.passive_session.StepSink`.

    Args:
        meta: the run without its steps.
        tenant: whose run it is.
        touched: told whenever something is new: `rows`, and then `written`, are to be called some time.

    Attributes:
        id: of the run.
        tenant: whose it is.
        worth: whether tools were called in it.
        ended: whether it has ended.
    """

    __slots__ = (
        "_fresh", "_head", "_length", "_meta", "_new", "_stored", "_touched",
        "ended", "id", "tenant", "worth",
    )  # fmt: skip

    def __init__(self, meta: Trajectory, tenant: str, touched: Callable[[RunRowBuilder], None]) -> None:
        self.id, self.tenant = meta.id, tenant
        self._meta, self._touched = meta, touched
        self._head = head_row(meta, tenant=tenant)
        self._fresh, self.worth, self.ended = True, False, False
        self._length = 0
        self._new: list[Step] = []
        self._stored: list[Step] = []
        touched(self)

    def add(self, step: Step) -> None:
        """Take the next step."""
        self._new.append(step)
        self.worth = self.worth or bool(step.tool_calls)
        self._touched(self)

    def end(self) -> None:
        """The run has ended."""
        self.ended = True
        self._touched(self)

    def rows(self) -> list[RunRow | StepRow]:
        """What is new, secrets and all."""
        steps = [step_row(self.id, step, tenant=self.tenant) for step in self._new]
        return [self._head, *steps] if self._fresh else list(steps)

    def written(self, rows: Sequence[RunRow | StepRow], *, was_cleaned: bool) -> list[Row]:
        """All that is to be written, given what `rows` returned, without its secrets if it had any."""
        fresh, self._fresh = self._fresh, False
        if fresh:
            self._take_head(rows[0])
        steps = rows[1:] if fresh else rows
        self._length += len(steps)
        self._keep(steps, was_cleaned=was_cleaned)
        made: list[Row] = [ClearRow(tenant=self.tenant, run_id=self.id)] if fresh else []
        if self.ended:
            made.append(_ended(self._head, self._length))
        elif fresh:
            made.append(self._head)
        return [*made, *steps]

    def run(self) -> Trajectory:
        """The run as it is stored; its steps are known only while no tool was called in it."""
        meta = self._meta
        return Trajectory(
            id=meta.id,
            format=meta.format,
            task=meta.task,
            steps=tuple(self._stored),
            tools=meta.tools,
            system_prompts=meta.system_prompts,
            extra=meta.extra,
        )

    def _take_head(self, head: Row) -> None:
        if head is not self._head and isinstance(head, RunRow):
            self._head, self._meta = head, decode_meta(JsonNode.from_value(head.data))

    def _keep(self, rows: Sequence[Row], *, was_cleaned: bool) -> None:
        """Remember the new steps as they are stored; of a run with calls others read the store."""
        given, self._new = self._new, []
        if self.worth:
            self._stored = []
            return
        self._stored += [decode_step(JsonNode.from_value(row.data)) for row in rows] if was_cleaned else given


def _ended(head: RunRow, length: int) -> RunRow:
    """The row of a run that has ended; `dataclasses.replace` takes five times as long."""
    return RunRow(
        tenant=head.tenant,
        created_at=head.created_at,
        data={**head.data, "ended": True},
        id=head.id,
        format=head.format,
        task=head.task,
        group=head.group,
        failed=head.failed,
        length=length,
        annotation=head.annotation,
    )


def cleaned(row: RunRow | StepRow, clean: Clean) -> RunRow | StepRow:
    """A row without its secrets."""
    data = clean(dict(row.data))
    if data == row.data:
        return row
    if isinstance(row, StepRow):
        return replace(row, data=data, source=data["source"], agent=data["agent"])
    return head_row(decode_meta(JsonNode.from_value(data)), tenant=row.tenant, created_at=row.created_at)
