from __future__ import annotations

import calendar
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentguard.store import Store
from agentguard.store.db.rows import DiagnosisRow, RecoveryRow, RunRow
from agentguard.store.read import failure_statistics
from agentguard.store.read.failure_statistics import (
    DAY_S,
    count_failures_by_agent_and_code,
    count_failures_over_time,
    find_failed_runs,
    get_run_lengths,
    group_failures_by_code,
    list_runs_by_schema,
)
from tests.postgres import postgres, postgres_url  # noqa: F401

MONDAY = calendar.timegm((2026, 11, 16, 0, 0, 0))


def add(
    store: Store,
    id: str,
    *,
    at: float = MONDAY,
    code: str = "t:a",
    agent: str = "x",
    verdict: str = "failed",
    tenant: str = "",
) -> None:
    store.write(
        RunRow(id=id, created_at=at, task=f"task {id}", length=7, tenant=tenant),
        DiagnosisRow(run_id=id, method="m", verdict=verdict, step=3, agent=agent, code=code, tenant=tenant),
    )


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = tmp_path / "s.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with Store.open(url) as opened:
        yield opened


def test_empty_store_has_no_buckets(store: Store) -> None:
    found = count_failures_over_time(store)
    assert found.starts == ()
    assert found.runs.total == found.failed.total == 0


def test_weeks_begin_on_monday_in_utc(store: Store) -> None:
    add(store, "sunday", at=MONDAY - 1)
    add(store, "monday", at=MONDAY)
    add(store, "later", at=MONDAY + 6 * DAY_S + 86_399)
    store.flush(10)
    found = count_failures_over_time(store, bucket="week")
    assert found.starts == (MONDAY - 7 * DAY_S, MONDAY)
    assert dict(found.failed.counts) == {MONDAY - 7 * DAY_S: 1, MONDAY: 2}


def test_days_without_runs_are_listed(store: Store) -> None:
    add(store, "a", at=MONDAY + 10)
    add(store, "b", at=MONDAY + 3 * DAY_S)
    store.flush(10)
    found = count_failures_over_time(store, bucket="day")
    assert found.starts == tuple(MONDAY + n * DAY_S for n in range(4))
    assert MONDAY + DAY_S not in found.runs.counts


def test_failed_runs_are_counted_by_code_and_agent(store: Store) -> None:
    for number in range(3):
        add(store, f"a{number}", code="t:a", agent="x")
    add(store, "b", code="t:b", agent="x")
    add(store, "fine", verdict="no_failure_found", code="", agent="")
    add(store, "other", code="t:a", tenant="else")
    store.write(RunRow(id="undiagnosed"))
    store.flush(10)
    found = count_failures_over_time(store)
    assert (found.runs.total, found.failed.total) == (5, 4)
    assert [(one.name, one.total) for one in found.codes] == [("t:a", 3), ("t:b", 1)]
    assert [(one.name, one.total) for one in found.agents] == [("x", 4)]
    assert sum(found.codes[0].counts.values()) == 3


def test_failed_runs_are_counted_by_agent_and_code(store: Store) -> None:
    for number, (agent, code) in enumerate(
        [("x", "t:a"), ("x", "t:a"), ("x", "t:b"), ("y", "t:a"), ("", "t:a")]
    ):
        add(store, f"r{number}", agent=agent, code=code)
    add(store, "old", at=MONDAY - 1, agent="x", code="t:a")
    add(store, "fine", verdict="no_failure_found", agent="x", code="t:a")
    add(store, "other", agent="x", code="t:a", tenant="else")
    store.flush(10)
    found = count_failures_by_agent_and_code(store, ["x", "", "z"], ["t:a"], since=MONDAY)
    assert found == {("x", "t:a"): 2, ("", "t:a"): 1}


def test_only_latest_buckets_are_counted(store: Store) -> None:
    for number in range(10):
        add(store, f"r{number}", at=MONDAY + number * DAY_S)
    store.flush(10)
    found = count_failures_over_time(store, bucket="day", max_buckets=4)
    assert len(found.starts) == 4
    assert found.failed.total == 4
    assert count_failures_over_time(store, bucket="day", since=MONDAY + 9 * DAY_S).runs.total == 1


def test_invalid_times_do_not_hide_other_runs(store: Store) -> None:
    add(store, "now")
    add(store, "never", at=1e200)
    add(store, "before", at=-5.0)
    store.flush(10)
    assert count_failures_over_time(store).runs.total == 1


def test_codes_have_their_latest_runs(store: Store) -> None:
    for number in range(7):
        add(store, f"a{number}", at=MONDAY + number)
    add(store, "b", code="t:b")
    store.flush(10)
    first, second = group_failures_by_code(store, examples_per_code=3)
    assert (first.code, first.total) == ("t:a", 7)
    assert [run.run_id for run in first.latest] == ["a6", "a5", "a4"]
    assert first.latest[0].task == "task a6"
    assert (second.code, second.total, len(second.latest)) == ("t:b", 1, 1)


@pytest.mark.parametrize("newest", [0, 1, 4, 100])
def test_rare_codes_have_their_latest_runs(
    store: Store, monkeypatch: pytest.MonkeyPatch, newest: int
) -> None:
    monkeypatch.setattr(failure_statistics, "_MAX_NEWEST_FAILURES", newest)
    for number in range(9):
        add(store, f"a{number}", at=MONDAY + 100 + number // 2, code="t:a")
    for number in range(4):
        add(store, f"b{number}", at=MONDAY + number, code="t:b")
    store.flush(10)
    groups = group_failures_by_code(store, examples_per_code=3)
    assert [(one.code, one.total, [run.run_id for run in one.latest]) for one in groups] == [
        ("t:a", 9, ["a8", "a6", "a7"]),
        ("t:b", 4, ["b3", "b2", "b1"]),
    ]


def test_runs_are_found_by_name(store: Store) -> None:
    add(store, "bad")
    add(store, "fine", verdict="no_failure_found")
    store.flush(10)
    assert set(find_failed_runs(store, ["bad", "fine", "absent"])) == {"bad"}
    assert get_run_lengths(store, [*(f"r{n}" for n in range(1200)), "bad", "fine"]) == {"bad": 7, "fine": 7}
    assert get_run_lengths(store, ["bad"], tenant="else") == {}


def test_runs_are_found_by_guiding_schema(store: Store) -> None:
    for run in ("a", "b", "b"):
        store.write(RecoveryRow(run_id=run, strategy="rollback", schema_id="s1"))
    store.write(RecoveryRow(run_id="c", strategy="rollback"))
    store.flush(10)
    assert list_runs_by_schema(store) == {"s1": ("a", "b")}
