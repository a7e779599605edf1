"""Event sink that writes a run in progress to the store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agentguard.errors import FormatError
from agentguard.store.db.rows import BranchRow, Row, RunRow, StepRow
from agentguard.store.store import Store
from agentguard.store.trajectory_mapping import build_run_row
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.serialization import decode_annotation, decode_meta


class StoreEventSink:
    """Sink that turns the events of a recorder into rows; `append` never waits for the database.

    The store counts rows that cannot be written (`Store.get_health`). The sink handles one run at a time.

    Args:
        store: the store that receives the rows.
        tenant: tenant that owns the run.
    """

    def __init__(self, store: Store, *, tenant: str = "") -> None:
        self._store, self._tenant = store, tenant
        self._run_row: RunRow | None = None
        self._length = 0

    def append(self, event: dict[str, Any]) -> None:
        """Queue the rows of an event. Raises FormatError if the event is invalid or precedes the header."""
        rows = self._build_rows(event)
        if rows:
            self._store.write(*rows)

    def close(self) -> None:
        """Do nothing; the store writes the queued rows."""

    def _build_rows(self, event: dict[str, Any]) -> tuple[Row, ...]:
        node = JsonNode.from_value(event)
        name = node.text("event")
        if name == "header":
            run = decode_meta(node)
            self._length = 0
            self._run_row = build_run_row(run, tenant=self._tenant)
            return (self._run_row,)
        if self._run_row is None:
            raise FormatError("an event precedes the header", field="event")
        return self._build_run_rows(name, node, self._run_row)

    def _build_run_rows(self, name: str, node: JsonNode, run_row: RunRow) -> tuple[Row, ...]:
        if name == "step":
            return (self._build_step_row(node, run_row),)
        if name in ("fork", "branch"):
            return (self._build_branch_row(name, node, run_row),)
        if name == "annotation":
            self._run_row = self._annotate_run_row(run_row, node)
            return (self._run_row,)
        complete_row = self._with_length(run_row)
        return (
            (replace(complete_row, data={**complete_row.data, "ended": True}),)
            if name == "end"
            else (complete_row,)
        )

    def _build_step_row(self, node: JsonNode, run_row: RunRow) -> StepRow:
        step, line = node.node("step"), node.text_or("branch")
        index = step.integer("index")
        if not line:
            self._length = index + 1
        return StepRow(
            tenant=self._tenant,
            run_id=run_row.id,
            line=line,
            index=index,
            source=step.text_or("source"),
            agent=step.text_or("agent"),
            data=step.data,
        )

    def _build_branch_row(self, name: str, node: JsonNode, run_row: RunRow) -> BranchRow:
        fork_step = node.integer("at" if name == "fork" else "fork_step")
        if name == "fork":
            self._length = fork_step
        return BranchRow(
            tenant=self._tenant,
            run_id=run_row.id,
            id=node.text("branch"),
            fork_step=fork_step,
            parent=node.text("parent") if "parent" in node else None,
            takes=name == "fork",
            data={key: node.data[key] for key in ("reason", "extra") if key in node},
        )

    def _annotate_run_row(self, run_row: RunRow, node: JsonNode) -> RunRow:
        annotation = node.node("annotation")
        failed = decode_annotation(annotation).failed
        return replace(self._with_length(run_row), failed=failed, annotation=annotation.data)

    def _with_length(self, run_row: RunRow) -> RunRow:
        return replace(run_row, length=self._length)
