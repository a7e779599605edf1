"""How often runs fail, with what and by whom, over time: counted by the database, for any number of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from sqlalchemy import BigInteger, ColumnElement, Connection, cast, func, select

from agentguard.store.fit import asked_tenant
from agentguard.store.overview import Verdict
from agentguard.store.store import Store
from agentguard.store.tables import OVERVIEWS, RECOVERIES, RUNS

Bucket = Literal["day", "week"]

DAY_S: Final = 86_400
_WIDTHS: Final[Mapping[str, int]] = {"day": DAY_S, "week": 7 * DAY_S}
_MONDAY_S: Final = 4 * DAY_S  # 1970-01-05: weeks begin on Mondays, days and weeks are those of UTC
_LATEST_S: Final = 32_503_680_000  # the year 3000: a clock beyond it was wrong
_AT_ONCE: Final = 500
_O = OVERVIEWS.c


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """How many runs a bucket; buckets without any are left out.

    Attributes:
        name: code or agent; empty where a diagnosis names none.
        total: over all buckets.
        counts: start of the bucket, epoch seconds, to its number of runs.
    """

    name: str
    total: int
    counts: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frequencies:
    """Failed runs over time.

    Attributes:
        width_s: of a bucket, in seconds.
        starts: of all buckets from the first to the last that has a run, epoch seconds; empty without runs.
        runs, failed: all diagnosed runs, and those held to have failed.
        codes, agents: of the failed runs, the most frequent first; what is beyond the limit is left out.
    """

    width_s: int
    starts: tuple[int, ...] = ()
    runs: Series
    failed: Series
    codes: tuple[Series, ...] = ()
    agents: tuple[Series, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A failed run, in few words."""

    run_id: str
    task: str
    step: int | None
    agent: str
    began_at: float
    code: str = ""
    recovered: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeGroup:
    """Failed runs of one code: how many, and the latest of them."""

    code: str
    total: int
    latest: tuple[Example, ...] = field(default=())


def frequencies(
    store: Store,
    *,
    bucket: Bucket = "week",
    since: float | None = None,
    most: int = 12,
    most_buckets: int = 120,
    tenant: str = "",
) -> Frequencies:
    """Count runs by time, and the failed ones by code and by agent.

    Args:
        store: whose runs.
        bucket: how wide.
        since: only runs that began at or after, epoch seconds.
        most: how many codes and agents.
        most_buckets: the latest so many buckets; what lies before is not counted.
        tenant: whose runs.

    Raises:
        StoreUnavailable: the database cannot be read now.
    """
    width = _WIDTHS[bucket]
    offset = _MONDAY_S if bucket == "week" else 0
    asked = [
        _O.tenant == asked_tenant(tenant),
        _O.known.is_(True),
        _O.verdict != "",
        _O.began_at.between(0, _LATEST_S),
    ]
    with store.reading() as connection:
        last = connection.execute(select(func.max(_O.began_at)).where(*asked)).scalar()
        if last is None:
            empty = Series(name="", total=0, counts={})
            return Frequencies(width_s=width, runs=empty, failed=empty)
        earliest = _start(last, width, offset) - (most_buckets - 1) * width
        asked.append(_O.began_at >= max(earliest, since if since is not None else earliest))
        place = _place(connection, width, offset)
        failed = [*asked, _O.verdict == Verdict.FAILURE.value]
        runs = _counted(connection, place, asked, width, offset)
        codes = _series(connection, _O.code, place, failed, (width, offset))
        agents = _series(connection, _O.agent, place, failed, (width, offset))
        bad = _counted(connection, place, failed, width, offset)
    first, end = min(runs.counts, default=0), max(runs.counts, default=-width)
    return Frequencies(
        width_s=width,
        starts=tuple(range(first, end + 1, width)),
        runs=runs,
        failed=bad,
        codes=codes[:most],
        agents=agents[:most],
    )


def failed_by_code(store: Store, *, examples: int = 5, tenant: str = "") -> tuple[CodeGroup, ...]:
    """Failed runs by code, the most frequent first, each with its latest runs."""
    failed = (
        _O.tenant == asked_tenant(tenant),
        _O.known.is_(True),
        _O.verdict == Verdict.FAILURE.value,
    )
    place = func.row_number().over(partition_by=_O.code, order_by=(_O.began_at.desc(), _O.run_id))
    ranked = select(*_EXAMPLE, place.label("place")).where(*failed).subquery()
    with store.reading() as connection:
        counts = connection.execute(select(_O.code, func.count()).where(*failed).group_by(_O.code)).all()
        found = connection.execute(
            select(ranked).where(ranked.c.place <= examples).order_by(ranked.c.code, ranked.c.place)
        ).mappings()
        latest: dict[str, list[Example]] = {}
        for one in found:
            latest.setdefault(one["code"], []).append(_example(one))
    ordered = sorted(((code, int(n)) for code, n in counts), key=lambda pair: (-pair[1], pair[0]))
    return tuple(CodeGroup(code=code, total=n, latest=tuple(latest.get(code, ()))) for code, n in ordered)


def runs_called(store: Store, ids: Iterable[str], *, tenant: str = "") -> dict[str, Example]:
    """What is known of those of the runs ``ids`` that are in the store and held to have failed."""
    found: dict[str, Example] = {}
    with store.reading() as connection:
        for part in _parts(ids):
            query = select(*_EXAMPLE).where(
                _O.tenant == asked_tenant(tenant),
                _O.known.is_(True),
                _O.verdict == Verdict.FAILURE.value,
                _O.run_id.in_(part),
            )
            found |= {one["run_id"]: _example(one) for one in connection.execute(query).mappings()}
    return found


def runs_by_schema(store: Store, *, tenant: str = "") -> dict[str, tuple[str, ...]]:
    """Schema to the runs whose recovery it spoke for."""
    table = RECOVERIES.c
    query = select(table.schema_id, table.run_id).where(
        table.tenant == asked_tenant(tenant), table.schema_id != ""
    )
    held: dict[str, list[str]] = {}
    with store.reading() as connection:
        for schema, run in connection.execute(query.distinct().order_by(table.schema_id, table.run_id)):
            held.setdefault(schema, []).append(run)
    return {schema: tuple(runs) for schema, runs in held.items()}


def run_lengths(store: Store, ids: Iterable[str], *, tenant: str = "") -> dict[str, int]:
    """Steps of those of the runs ``ids`` that are in the store."""
    found: dict[str, int] = {}
    with store.reading() as connection:
        for part in _parts(ids):
            query = select(RUNS.c.id, RUNS.c.length).where(
                RUNS.c.tenant == asked_tenant(tenant), RUNS.c.id.in_(part)
            )
            found |= {id: int(length) for id, length in connection.execute(query)}
    return found


_EXAMPLE = (_O.run_id, _O.task, _O.step, _O.agent, _O.began_at, _O.code, _O.recovered)


def _example(found: Mapping[Any, Any]) -> Example:
    return Example(**{column.name: found[column.name] for column in _EXAMPLE})


def _parts(ids: Iterable[str]) -> Iterable[list[str]]:
    held = list(dict.fromkeys(ids))
    return (held[start : start + _AT_ONCE] for start in range(0, len(held), _AT_ONCE))


def _place(connection: Connection, width: int, offset: int) -> ColumnElement[int]:
    """The number of a run's bucket, in SQL; SQLite may have no floor(), but cuts where it casts."""
    share = (_O.began_at - offset) / width
    return cast(func.floor(share) if connection.dialect.name == "postgresql" else share, BigInteger)


def _start(time: float, width: int, offset: int) -> int:
    return int((time - offset) // width) * width + offset


def _counted(
    connection: Connection, place: ColumnElement[int], where: Sequence[ColumnElement[bool]], width: int,
    offset: int,
) -> Series:  # fmt: skip
    found = connection.execute(select(place, func.count()).where(*where).group_by(place)).all()
    counts = {int(number) * width + offset: int(n) for number, n in found}
    return Series(name="", total=sum(counts.values()), counts=counts)


def _series(
    connection: Connection,
    column: ColumnElement[str],
    place: ColumnElement[int],
    where: Sequence[ColumnElement[bool]],
    grid: tuple[int, int],
) -> tuple[Series, ...]:
    """One series a value of ``column``, the most frequent first."""
    width, offset = grid
    held: dict[str, dict[int, int]] = {}
    query = select(column, place, func.count()).where(*where).group_by(column, place)
    for name, number, n in connection.execute(query):
        held.setdefault(name, {})[int(number) * width + offset] = int(n)
    made = (Series(name=name, total=sum(counts.values()), counts=counts) for name, counts in held.items())
    return tuple(sorted(made, key=lambda one: (-one.total, one.name)))
