"""Questions about many runs at once: pages of overviews, how many there are, what there is to filter by."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable
from typing import Any, Final

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Double,
    Engine,
    Select,
    Text,
    and_,
    exists,
    false,
    func,
    insert,
    literal,
    not_,
    or_,
    select,
    true,
    tuple_,
    update,
)

from agentguard.errors import StoreError
from agentguard.store.db.engine import IMMEDIATE
from agentguard.store.db.row_mapping import asked_tenant, cleaned, to_row
from agentguard.store.db.run_summary import (
    SORTS,
    Facets,
    OverviewFilter,
    OverviewRow,
    Sort,
    SummaryChange,
    VerdictFilter,
    label,
    labels,
)
from agentguard.store.db.tables import OVERVIEWS, RUNS
from agentguard.store.read.pagination import Page, ResultPage
from agentguard.store.write.summary_maintenance import rebuilt
from agentguard.store.write.summary_updates import blank

_MOST_VALUES: Final = 50
_CHUNK: Final = 100
_C = OVERVIEWS.c


def page(
    connection: Connection, filter: OverviewFilter, sort: Sort, page: Page, tenant: str
) -> ResultPage[OverviewRow]:
    """A page of runs in an order. Raises StoreError where ``page.after`` is of another order."""
    column = _C[SORTS[sort.by]]
    query = _chosen(select(OVERVIEWS), filter, tenant, connection.dialect.name)
    if page.after is not None:
        query = query.where(_after(column, sort, *_placed(page.after, sort, column)))
    order: list[Any] = [column.is_(None)] if column.nullable else []
    order += [column.desc(), _C.run_id.desc()] if sort.descending else [column, _C.run_id]
    found = connection.execute(query.order_by(*order).limit(page.limit + 1)).mappings().all()
    kept = tuple(to_row(OverviewRow, one) for one in found[: page.limit])
    if len(found) <= page.limit:
        return ResultPage(rows=kept)
    last = found[page.limit - 1]
    return ResultPage(rows=kept, next=_place(sort, last[column.name], last["run_id"]))


def count(connection: Connection, filter: OverviewFilter, tenant: str, most: int) -> int:
    """How many runs there are; counting stops at ``most``."""
    query = _chosen(select(literal(1)), filter, tenant, connection.dialect.name).limit(most)
    return int(connection.execute(select(func.count()).select_from(query.subquery())).scalar_one())


def facets(connection: Connection, tenant: str) -> Facets:
    """What there is to filter by, over all runs."""

    def grouped(column: Column[Any]) -> dict[str, int]:
        number = func.count().label("number")
        query = select(column, number).where(_C.tenant == asked_tenant(tenant), _C.known)
        most = query.group_by(column).order_by(number.desc(), column).limit(_MOST_VALUES)
        return {str(value): many for value, many in connection.execute(most)}

    return Facets(
        verdicts=grouped(_C.verdict),
        codes=_named(grouped(_C.code)),
        agents=_named(grouped(_C.agent)),
        models=_each(grouped(_C.models)),
        tags=_each(grouped(_C.tags)),
    )


def changes(connection: Connection, since: float, tenant: str, most: int) -> tuple[SummaryChange, ...]:
    """Runs whose overview changed after ``since`` (epoch seconds), the latest first."""
    query = select(_C.run_id, _C.updated_at, _C.created_at).where(
        _C.tenant == asked_tenant(tenant), _C.updated_at > since, _C.known
    )
    found = connection.execute(query.order_by(_C.updated_at.desc()).limit(most))
    return tuple(SummaryChange(*one) for one in found)


def refresh(engine: Engine, *, every: bool = False) -> int:
    """Make overviews anew that a migration left to be made (or every one); returns how many.

    Works in small transactions, so that writers never wait long for one.

    Raises:
        sqlalchemy.exc.SQLAlchemyError, OSError: the database cannot be used now.
    """
    done = 0
    if every:
        with engine.connect().execution_options(**IMMEDIATE) as connection, connection.begin():
            connection.execute(update(OVERVIEWS).values(stale=True))
            _add_missing(connection)
    while True:
        with engine.connect().execution_options(**IMMEDIATE) as connection, connection.begin():
            query = select(_C.tenant, _C.run_id).where(_C.stale).limit(_CHUNK).with_for_update()
            keys = [(tenant, run_id) for tenant, run_id in connection.execute(query)]
            if not keys:
                return done
            made = rebuilt(connection, keys)
            for tenant, run_id in keys:
                values = made.get((tenant, run_id), {"known": False, "stale": False})
                key = and_(_C.tenant == tenant, _C.run_id == run_id)
                connection.execute(update(OVERVIEWS).where(key).values(**values))
            done += len(keys)


def _add_missing(connection: Connection) -> None:
    """A row for each run that has none, to be made anew."""
    there = exists().where(_C.tenant == RUNS.c.tenant, _C.run_id == RUNS.c.id)
    missing = select(RUNS.c.tenant, RUNS.c.id, RUNS.c.created_at).where(not_(there))
    for tenant, run_id, created_at in connection.execute(missing).all():
        connection.execute(insert(OVERVIEWS).values({**blank(tenant, run_id, created_at), "stale": True}))


def like(text: str) -> str:
    """A pattern of LIKE in which every character stands for itself; its escape is a backslash."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _chosen(query: Select[Any], filter: OverviewFilter, tenant: str, dialect: str) -> Select[Any]:
    query = query.where(_C.tenant == asked_tenant(tenant), _C.known)
    for condition in (*_equal(filter), *_between(filter), *_told(filter, dialect)):
        query = query.where(condition)
    return query


def _equal(filter: OverviewFilter) -> Iterable[ColumnElement[bool]]:
    if filter.verdicts:
        wanted = sorted("" if one == VerdictFilter.NONE else str(one) for one in filter.verdicts)
        yield _C.verdict.in_(wanted)
    if filter.recovered:
        yield _C.recovered.in_(sorted(map(cleaned, filter.recovered)))
    if filter.agent is not None:
        yield _C.agent == cleaned(filter.agent)
    if filter.step is not None:
        yield _C.step == filter.step if abs(filter.step) < 2**62 else false()
    if filter.failed is not None:
        yield _C.failed.is_(filter.failed)
    if filter.judged is not None:
        yield _C.judged != "" if filter.judged else _C.judged == ""


def _between(filter: OverviewFilter) -> Iterable[ColumnElement[bool]]:
    for column, low, high in (
        (_C.cost_usd, filter.min_cost, filter.max_cost),
        (_C.tokens, _bounded(filter.min_tokens), _bounded(filter.max_tokens)),
    ):
        if low is not None:
            yield column >= low
        if high is not None:
            yield column <= high
    if filter.since is not None:
        yield _C.began_at >= filter.since
    if filter.until is not None:
        yield _C.began_at < filter.until


def _told(filter: OverviewFilter, dialect: str) -> Iterable[ColumnElement[bool]]:
    if filter.code:
        yield _C.code.like(like(cleaned(filter.code)) + "%", escape="\\")
    for column, name in ((_C.models, filter.model), (_C.tags, filter.tag)):
        if name is not None:
            yield column.like(f"%\n{like(cleaned(label(name)))}\n%", escape="\\")
    if filter.text:
        # SQLite's LIKE passes over the case of ASCII letters by itself, and has no other.
        pattern = f"%{like(cleaned(filter.text))}%"
        columns = (_C.task, _C.run_id)
        if dialect == "postgresql":
            yield or_(*(one.ilike(pattern, escape="\\") for one in columns))
        else:
            yield or_(*(one.like(pattern, escape="\\") for one in columns))


def _bounded(value: int | None) -> int | None:
    return None if value is None else max(-(2**62), min(2**62, value))


def _after(column: Column[Any], sort: Sort, value: Any, run_id: str) -> ColumnElement[bool]:
    """What comes after a row in an order in which rows without a value are last."""
    further: Callable[[Any, Any], Any] = (lambda a, b: a < b) if sort.descending else (lambda a, b: a > b)
    if value is None:
        return and_(column.is_(None), further(_C.run_id, run_id))
    later = further(tuple_(column, _C.run_id), tuple_(literal(value, column.type), literal(run_id, Text)))
    return or_(later, column.is_(None)) if column.nullable else and_(later, true())


def _place(sort: Sort, value: Any, run_id: str) -> str:
    """Where a page ended, as text that may go into a URL."""
    raw = json.dumps([sort.by, sort.descending, value, run_id])
    return base64.urlsafe_b64encode(raw.encode()).decode().rstrip("=")


def _placed(text: str, sort: Sort, column: Column[Any]) -> tuple[Any, str]:
    """The value and id that `_place` was given. Raises StoreError on any other text."""
    try:
        raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        by, descending, value, run_id = json.loads(raw)
    except (ValueError, TypeError, RecursionError):
        raise _not_ours() from None
    if (by, descending) != (sort.by, sort.descending) or not isinstance(run_id, str):
        raise _not_ours()
    if value is None and column.nullable:
        return None, cleaned(run_id)
    if isinstance(column.type, Text):
        if not isinstance(value, str):
            raise _not_ours()
        return cleaned(value), cleaned(run_id)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _not_ours()
    if not isinstance(column.type, Double) and not (isinstance(value, int) and abs(value) < 2**62):
        raise _not_ours()
    return value, cleaned(run_id)


def _not_ours() -> StoreError:
    return StoreError("the place a page begins after is not one that the store gave for this order")


def _named(found: dict[str, int]) -> dict[str, int]:
    return {name: number for name, number in found.items() if name}


def _each(found: dict[str, int]) -> dict[str, int]:
    """Counts of single labels, from counts of the labels that runs have together."""
    made: dict[str, int] = {}
    for together, number in found.items():
        for one in labels(together):
            made[one] = made.get(one, 0) + number
    return dict(sorted(made.items(), key=lambda item: (-item[1], item[0]))[:_MOST_VALUES])
