"""Issues: recurring failures with a title, an owner and a state.

An issue consists of all failed runs whose root causes have the same agent, code and module. Its runs, times
and trend are counted from the run summaries, so that they are correct after a deletion or a new diagnosis.
The table of issues has only decisions of people: an issue without a decision has no row.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, get_args

from sqlalchemy import ColumnElement, RowMapping, func, select

from agentguard.errors import StoreError
from agentguard.store.db.row_mapping import sanitize_text, to_row, validate_query_id, validate_query_tenant
from agentguard.store.db.rows import IssueRow, IssueState, compute_digest
from agentguard.store.db.run_summary import VerdictFilter
from agentguard.store.db.tables import ISSUES, OVERVIEWS
from agentguard.store.read.failure_statistics import FailedRun, build_bucket_expression, find_failed_runs
from agentguard.store.store import Store
from agentguard.store.write.run_counts import DAY_S

ISSUE_STATES: Final[tuple[IssueState, ...]] = get_args(IssueState)
TREND_DAYS: Final = 28
"""Length of an issue's trend in days, up to its tenant's latest failed run."""

_DURABILITY_TIMEOUT_S: Final = 5.0
_MAX_TITLE_CHARS: Final = 200
_MAX_OWNER_CHARS: Final = 64
_SUMMARY = OVERVIEWS.c
_SIGNATURE = (_SUMMARY.agent, _SUMMARY.code, _SUMMARY.module)


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """Recurring failure.

    Attributes:
        id: stable id, computed from agent, code and module.
        agent, code, module: those of the root causes; empty if the diagnoses name none.
        title: title that a person gave; empty without one.
        owner: the person responsible; empty without one.
        state: current state; a resolved issue with a later run is open.
        is_reopened: whether a run began after the issue was resolved.
        runs: number of failed runs.
        first_seen, last_seen: begin of the first and of the latest run in epoch seconds; None without runs.
        trend: failed runs of each of the last `TREND_DAYS` days, latest last.
    """

    id: str
    agent: str
    code: str
    module: str
    title: str = ""
    owner: str = ""
    state: IssueState = "open"
    is_reopened: bool = False
    runs: int = 0
    first_seen: float | None = None
    last_seen: float | None = None
    trend: tuple[int, ...] = ()


def compute_issue_id(agent: str, code: str, module: str) -> str:
    """Return the id of the issue of a failed run with this root cause."""
    return compute_digest(*map(sanitize_text, (agent, code, module)))[:16]


def list_issues(
    store: Store, *, state: IssueState | None = None, min_runs: int = 2, tenant: str = ""
) -> tuple[Issue, ...]:
    """Return the issues, open ones first, then those with the most runs.

    Args:
        store: the store.
        state: only issues of this current state.
        min_runs: minimum number of runs of an issue without a decision of a person.
        tenant: tenant that owns the runs.

    Raises:
        StoreUnavailable: the database cannot be read now.
    """
    conditions = _match_failures(tenant)
    with store.begin_read() as connection:
        query = select(ISSUES).where(ISSUES.c.tenant == tenant)
        rows = {row["id"]: to_row(IssueRow, row) for row in connection.execute(query).mappings()}
        counted = connection.execute(_select_counts(conditions)).mappings().all()
        latest = max((row["last_seen"] for row in counted), default=0.0)
        first_day = int(latest // DAY_S) - TREND_DAYS + 1
        day = build_bucket_expression(connection, DAY_S, first_day * DAY_S).label("day")
        query = (
            select(*_SIGNATURE, day, func.count().label("runs"))
            .where(*conditions, _SUMMARY.began_at >= first_day * DAY_S)
            .group_by(*_SIGNATURE, day)
        )
        days = connection.execute(query).mappings().all()
    issues = _build_issues(rows, counted, days)
    selected = (
        issue
        for issue in issues
        if (issue.runs >= min_runs or issue.id in rows) and state in (None, issue.state)
    )
    order = {name: rank for rank, name in enumerate(ISSUE_STATES)}
    return tuple(
        sorted(selected, key=lambda one: (order[one.state], -one.runs, -(one.last_seen or 0), one.id))
    )


def get_issue(store: Store, issue_id: str, *, tenant: str = "") -> Issue | None:
    """Return an issue, also of a single run; None if there is neither a run nor a decision."""
    validate_query_id(issue_id, "issue")
    issues = list_issues(store, min_runs=1, tenant=tenant)
    return next((issue for issue in issues if issue.id == issue_id), None)


def list_issue_runs(
    store: Store, issue: Issue, *, limit: int = 100, tenant: str = ""
) -> tuple[FailedRun, ...]:
    """Return the latest failed runs of an issue, latest first."""
    signature = zip(_SIGNATURE, (issue.agent, issue.code, issue.module), strict=True)
    query = (
        select(_SUMMARY.run_id)
        .where(*_match_failures(tenant), *(column == sanitize_text(value) for column, value in signature))
        .order_by(_SUMMARY.began_at.desc(), _SUMMARY.run_id.desc())
        .limit(limit)
    )
    with store.begin_read() as connection:
        ids = connection.execute(query).scalars().all()
    runs = find_failed_runs(store, ids, tenant=tenant)
    return tuple(runs[id] for id in ids if id in runs)


def update_issue(
    store: Store,
    issue_id: str,
    *,
    title: str | None = None,
    owner: str | None = None,
    state: str | None = None,
    tenant: str = "",
) -> Issue:
    """Change title, owner or state of an issue, and return the changed issue; None changes nothing.

    Raises:
        StoreError: there is no such issue, or the state is unknown.
        StoreTimeout, RowsLost: the change could not be stored.
    """
    issue = get_issue(store, issue_id, tenant=tenant)
    if issue is None:
        raise StoreError(f"there is no issue {issue_id[:40]!r}: `list_issues` lists the issues")
    if state is not None and state not in ISSUE_STATES:
        raise StoreError(f"state is {state[:40]!r}, expected one of {', '.join(ISSUE_STATES)}")
    with store.begin_read() as connection:
        query = select(ISSUES).where(ISSUES.c.tenant == tenant, ISSUES.c.id == issue_id)
        stored = connection.execute(query).mappings().first()
    row = (
        to_row(IssueRow, stored)
        if stored is not None
        else IssueRow(id=issue.id, agent=issue.agent, code=issue.code, module=issue.module, tenant=tenant)
    )
    if title is not None:
        row = replace(row, title=_clean_line(title, _MAX_TITLE_CHARS))
    if owner is not None:
        row = replace(row, owner=_clean_line(owner, _MAX_OWNER_CHARS))
    if state is not None and state != issue.state:
        current: IssueState = next(one for one in ISSUE_STATES if one == state)
        row = replace(row, state=current, resolved_at=time.time() if current == "resolved" else None)
    store.write(row).wait(_DURABILITY_TIMEOUT_S)
    changed = get_issue(store, issue_id, tenant=tenant)
    if changed is None:
        raise StoreError(f"the issue {issue_id!r} was deleted while it was changed")
    return changed


def _match_failures(tenant: str) -> tuple[ColumnElement[bool], ...]:
    return (
        _SUMMARY.tenant == validate_query_tenant(tenant),
        _SUMMARY.known.is_(True),
        _SUMMARY.verdict == VerdictFilter.FAILED.value,
    )


def _select_counts(conditions: Sequence[ColumnElement[bool]]) -> Any:
    return (
        select(
            *_SIGNATURE,
            func.count().label("runs"),
            func.min(_SUMMARY.began_at).label("first_seen"),
            func.max(_SUMMARY.began_at).label("last_seen"),
        )
        .where(*conditions)
        .group_by(*_SIGNATURE)
    )


def _build_issues(
    rows: Mapping[str, IssueRow], counted: Sequence[RowMapping], days: Sequence[RowMapping]
) -> list[Issue]:
    trends: dict[str, list[int]] = {}
    for one in days:
        trend = trends.setdefault(_compute_row_id(one), [0] * TREND_DAYS)
        trend[int(one["day"])] += int(one["runs"])
    issues = {id: Issue(id=id, agent=row.agent, code=row.code, module=row.module) for id, row in rows.items()}
    for one in counted:
        id = _compute_row_id(one)
        issues[id] = Issue(
            id=id,
            agent=one["agent"],
            code=one["code"],
            module=one["module"],
            runs=int(one["runs"]),
            first_seen=one["first_seen"],
            last_seen=one["last_seen"],
            trend=tuple(trends.get(id, [0] * TREND_DAYS)),
        )
    return [_apply_decisions(issue, rows.get(id)) for id, issue in issues.items()]


def _compute_row_id(row: RowMapping) -> str:
    return compute_issue_id(row["agent"], row["code"], row["module"])


def _apply_decisions(issue: Issue, row: IssueRow | None) -> Issue:
    if row is None:
        return issue
    is_reopened = (
        row.state == "resolved"
        and row.resolved_at is not None
        and issue.last_seen is not None
        and issue.last_seen > row.resolved_at
    )
    state: IssueState = "open" if is_reopened else row.state
    return replace(issue, title=row.title, owner=row.owner, state=state, is_reopened=is_reopened)


def _clean_line(text: str, max_chars: int) -> str:
    return sanitize_text(" ".join(text.split()))[:max_chars]
