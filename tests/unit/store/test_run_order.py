"""Rows written by kind have the same result as rows written one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from sqlalchemy import create_engine, select

from agentguard.store.db.rows import (
    BranchRow,
    ClearRunRow,
    DropSnapshotsRow,
    FindingRow,
    Row,
    RunRow,
    SnapshotRow,
    StepRow,
)
from agentguard.store.db.tables import TABLES, metadata
from agentguard.store.write import batch as applying

RUNS = st.sampled_from(["a", "b", "c"])
STEP = st.builds(StepRow, run_id=RUNS, index=st.integers(0, 3), source=st.sampled_from(["user", "agent"]))
SNAPSHOT = st.builds(SnapshotRow, run_id=RUNS, step=st.integers(0, 2), state=st.sampled_from([b"1", b"2"]))
RUN = st.builds(RunRow, id=RUNS, task=st.sampled_from(["", "t"]), failed=st.sampled_from([None, True]))
FINDING = st.builds(FindingRow, run_id=RUNS, step=st.integers(0, 2), detector=st.just("d"))
CLEAR = st.builds(ClearRunRow, run_id=RUNS)
BRANCH = st.builds(BranchRow, run_id=RUNS, id=st.sampled_from(["x", "y"]), fork_step=st.integers(0, 2))
DROP = st.builds(DropSnapshotsRow, run_id=RUNS, steps=st.just((0, 1)))
USUAL = st.one_of(RUN, STEP, STEP, SNAPSHOT, FINDING, CLEAR)
ANY = st.one_of(USUAL, BRANCH, DROP)


def left(
    batches: list[list[Row]], monkeypatch: Any, *, arranged: bool, careful: bool = True
) -> dict[str, list[Any]]:
    """Return the content of all tables after batches of rows, except the times of summaries."""
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    with monkeypatch.context() as patched, engine.begin() as connection:
        if not arranged:
            patched.setattr(applying, "_group_by_type", lambda ready: ready)
        for rows in batches:
            assert (
                applying.apply_batch(connection, applying.prepare_batch(rows), use_savepoints=careful) == {}
            )
        found = {}
        for name, table in TABLES.items():
            columns = [column for column in table.c if column.name not in ("updated_at", "created_at")]
            found[name] = sorted(map(repr, connection.execute(select(*columns)).all()))
    engine.dispose()
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(USUAL, max_size=12) | st.lists(ANY, max_size=8), min_size=1, max_size=3))
def test_grouped_write_equals_sequential_write(batches: list[list[Row]]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert left(batches, monkeypatch, arranged=True) == left(batches, monkeypatch, arranged=False)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(ANY, max_size=10), min_size=1, max_size=3))
def test_write_without_savepoints_has_same_result(batches: list[list[Row]]) -> None:
    """One savepoint per row, and all rows at once."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        quick = left(batches, monkeypatch, arranged=True, careful=False)
        assert quick == left([[row] for rows in batches for row in rows], monkeypatch, arranged=False)


def test_repeatedly_written_run_keeps_its_first_time() -> None:
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    rows = [RunRow(id="a", created_at=float(at), length=at, tenant=name) for at in (1, 2, 3) for name in "xy"]
    with engine.begin() as connection:
        for some in (rows[:4], rows[4:]):
            assert applying.apply_batch(connection, applying.prepare_batch(some), use_savepoints=False) == {}
        found = connection.execute(select(TABLES["runs"].c["tenant", "created_at", "length"])).all()
    engine.dispose()
    assert sorted(map(tuple, found)) == [("x", 1.0, 3), ("y", 1.0, 3)]


def test_many_short_runs_form_few_groups() -> None:
    rows = [
        row
        for run in "abcdef"
        for row in (ClearRunRow(run_id=run), RunRow(id=run), StepRow(run_id=run, index=0), RunRow(id=run))
    ]
    kinds = [kind for _, (kind, _, _) in applying._group_by_type(applying.prepare_batch(rows).rows)]
    assert kinds == sorted(kinds, key=[ClearRunRow, RunRow, StepRow].index)


@pytest.mark.parametrize(
    "rows",
    [
        [StepRow(run_id="a", index=0), ClearRunRow(run_id="a"), RunRow(id="a")],
        [
            RunRow(id="a"),
            StepRow(run_id="a", index=0),
            BranchRow(run_id="a", id="x", fork_step=0),
            RunRow(id="a"),
        ],
        [
            SnapshotRow(run_id="a", step=0, state=b""),
            DropSnapshotsRow(run_id="a", steps=(0,)),
            RunRow(id="a"),
        ],
    ],
)
def test_order_dependent_rows_keep_their_order(rows: list[Row]) -> None:
    ready = applying.prepare_batch(rows).rows
    assert applying._group_by_type(ready) == ready
