"""Issues over SQLite and PostgreSQL: gathering, decisions, reopening, deletion."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentguard.errors import StoreError
from agentguard.store import Store
from agentguard.store.db.rows import DiagnosisRow, RunRow
from agentguard.store.issues import (
    TREND_DAYS,
    compute_issue_id,
    get_issue,
    list_issue_runs,
    list_issues,
    update_issue,
)
from agentguard.store.read.failure_statistics import DAY_S
from tests.postgres import postgres, postgres_url  # noqa: F401

NOON = 20_000 * DAY_S + DAY_S // 2
LOOP = compute_issue_id("buyer", "t:loop", "planning")


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = tmp_path / "s.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with Store.open(url) as opened:
        yield opened


def add(
    store: Store,
    id: str,
    *,
    at: float = NOON,
    verdict: str = "failed",
    agent: str = "buyer",
    code: str = "t:loop",
    module: str = "planning",
    tenant: str = "",
) -> None:
    """Write a diagnosed run; by default its root cause is a loop of ``buyer``."""
    store.write(
        RunRow(id=id, created_at=at, task=f"task {id}", tenant=tenant),
        DiagnosisRow(
            run_id=id,
            method="m",
            verdict=verdict,
            step=3,
            agent=agent,
            code=code,
            module=module,
            tenant=tenant,
        ),
    ).wait(10)


def test_failures_with_equal_cause_gather_in_one_issue(store: Store) -> None:
    add(store, "a", at=NOON - 2 * DAY_S)
    add(store, "b", at=NOON)
    add(store, "c", at=NOON - 40 * DAY_S)
    add(store, "other-agent", agent="seller")
    add(store, "other-module", module="memory")
    add(store, "passed", verdict="no_failure_found")
    add(store, "foreign", tenant="else")
    (issue,) = list_issues(store)
    assert (issue.id, issue.agent, issue.code, issue.module) == (LOOP, "buyer", "t:loop", "planning")
    assert (issue.runs, issue.state, issue.owner, issue.title) == (3, "open", "", "")
    assert (issue.first_seen, issue.last_seen) == (NOON - 40 * DAY_S, NOON)
    assert len(issue.trend) == TREND_DAYS
    assert (issue.trend[-1], issue.trend[-3], sum(issue.trend)) == (1, 1, 2)
    assert [run.run_id for run in list_issue_runs(store, issue)] == ["b", "a", "c"]
    assert [run.run_id for run in list_issue_runs(store, issue, limit=1)] == ["b"]


def test_single_failure_is_listed_on_request_or_after_decision(store: Store) -> None:
    add(store, "a")
    assert list_issues(store) == ()
    assert [issue.id for issue in list_issues(store, min_runs=1)] == [LOOP]
    assert update_issue(store, LOOP, owner=" ann \n lee ").owner == "ann lee"
    assert [issue.owner for issue in list_issues(store)] == ["ann lee"]


def test_resolved_issue_is_reopened_by_later_run_only(store: Store) -> None:
    add(store, "a")
    add(store, "b")
    assert update_issue(store, LOOP, state="resolved", title="Loop").state == "resolved"
    add(store, "imported", at=NOON + 1)  # began before the resolution
    (resolved,) = list_issues(store, state="resolved")
    assert (resolved.runs, resolved.is_reopened, resolved.title) == (3, False, "Loop")
    add(store, "again", at=time.time() + 60)
    (reopened,) = list_issues(store, state="open")
    assert (reopened.runs, reopened.is_reopened, reopened.title) == (4, True, "Loop")
    assert list_issues(store, state="resolved") == ()
    changed = update_issue(store, LOOP, owner="ann")
    assert (changed.state, changed.is_reopened) == ("open", True)
    again = update_issue(store, LOOP, state="open")
    assert again.state == "open"


def test_change_of_owner_does_not_move_the_resolution(store: Store) -> None:
    add(store, "a")
    update_issue(store, LOOP, state="resolved")
    resolved_at = time.time()
    update_issue(store, LOOP, state="resolved", owner="ann")
    add(store, "again", at=resolved_at)
    assert get_issue(store, LOOP).is_reopened  # type: ignore[union-attr]


def test_ignored_issue_remains_ignored(store: Store) -> None:
    add(store, "a")
    update_issue(store, LOOP, state="ignored")
    add(store, "again", at=time.time() + 60)
    (issue,) = list_issues(store)
    assert (issue.state, issue.is_reopened, issue.runs) == ("ignored", False, 2)


def test_deleted_runs_leave_the_issue_and_its_decision(store: Store) -> None:
    add(store, "a")
    add(store, "b")
    update_issue(store, LOOP, owner="ann")
    store.delete_run("a")
    assert get_issue(store, LOOP).runs == 1  # type: ignore[union-attr]
    store.delete_run("b")
    issue = get_issue(store, LOOP)
    assert issue is not None
    assert (issue.runs, issue.last_seen, issue.owner, issue.code) == (0, None, "ann", "t:loop")
    assert list_issue_runs(store, issue) == ()
    store.delete_tenant("")
    assert get_issue(store, LOOP) is None


def test_unknown_issue_and_state_are_rejected(store: Store) -> None:
    add(store, "a")
    with pytest.raises(StoreError, match="no issue 'x'"):
        update_issue(store, "x", state="resolved")
    with pytest.raises(StoreError, match="expected one of open, resolved, ignored"):
        update_issue(store, LOOP, state="done")
    assert list_issues(store) == ()


def test_issues_are_ordered_by_state_and_runs(store: Store) -> None:
    for number in range(3):
        add(store, f"l{number}")
        add(store, f"s{number}", code="t:stop")
        add(store, f"e{number}", code="t:end")
    add(store, "s3", code="t:stop")
    update_issue(store, compute_issue_id("buyer", "t:end", "planning"), state="resolved")
    assert [issue.code for issue in list_issues(store)] == ["t:stop", "t:loop", "t:end"]
