"""The list of runs as its address says: filters, order and page, read from a query and written as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from agentguard.store.overview import SORTS, OverviewFilter, Sort, Verdict
from agentguard.store.page import MOST

T = TypeVar("T")

SIZES: Final = (25, 50, 100, 200)
SIZE: Final = 50
_MAX_TEXT: Final = 256

RECOVERED: Final[Mapping[str, str]] = {"yes": "yes", "no": "no", "pending": "pending", "none": ""}
"""What a query calls how recovery ended, and what the store does."""

Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a query asks for.

    Attributes:
        filter, sort: as the store takes them.
        limit, after: of the page.
        given: the query without what is empty or was not understood, in one order, without the page.
        wrong: what was not understood, for a person.
    """

    filter: OverviewFilter
    sort: Sort
    limit: int = SIZE
    after: str | None = None
    given: tuple[tuple[str, str], ...] = ()
    wrong: tuple[str, ...] = ()

    def query(self, *, drop: Sequence[str] = (), pair: tuple[str, str] | None = None, **more: str) -> str:
        """The query with changes, from the first page on; begins with ``?`` unless it is empty.

        Args:
            drop: names to leave out.
            pair: one name and value to leave out.
            more: what to put in place of what there is of that name.
        """
        kept = [one for one in self.given if one[0] not in (*drop, *more) and one != pair]
        made = urlencode([*kept, *more.items()], errors="replace")
        return f"?{made}" if made else "?"

    def sorted_by(self, name: str) -> str:
        """The query in the order of a column; in the other direction where that is the order already."""
        descending = not self.sort.descending if self.sort.by == name else name not in _ASCENDING_FIRST
        return self.query(sort=name, dir="desc" if descending else "asc")

    def value(self, name: str) -> str:
        """What the query has for a field of the form; the first, empty for nothing."""
        return next((value for key, value in self.given if key == name), "")

    def has(self, name: str, value: str) -> bool:
        """Whether the query has a value among those of a field."""
        return (name, value) in self.given

    @property
    def filters(self) -> tuple[tuple[str, str], ...]:
        """What narrows the list."""
        return tuple(one for one in self.given if one[0] not in ("sort", "dir", "limit"))


_ASCENDING_FIRST = frozenset(
    {"task", "verdict", "agent", "code", "model", "tags", "step", "recovered", "judged"}
)


class _Reader:
    """Takes fields from a query one by one and notes what was not understood."""

    def __init__(self, pairs: Pairs) -> None:
        self._pairs = [(name, value.strip()[:_MAX_TEXT]) for name, value in pairs]
        self.given: list[tuple[str, str]] = []
        self.wrong: list[str] = []

    def one(self, name: str, read: Callable[[str], T], what: str) -> T | None:
        """The last value of a field; None where it is empty or is not what it must be."""
        values = [value for key, value in self._pairs if key == name and value]
        if not values:
            return None
        try:
            found = read(values[-1])
        except ValueError:
            self.wrong.append(f"{values[-1][:60]!r} is {what}: it was passed over")
            return None
        self.given.append((name, values[-1]))
        return found

    def many(self, name: str, known: Mapping[str, T]) -> frozenset[T]:
        """All values of a field that are known."""
        found = list(dict.fromkeys(value for key, value in self._pairs if key == name and value in known))
        self.given += [(name, value) for value in found]
        return frozenset(known[value] for value in found)


def asked(pairs: Pairs) -> Asked:
    """What a query asks for; whatever is wrong in it is passed over and said."""
    reader = _Reader(pairs)
    filter = OverviewFilter(
        text=reader.one("q", str, "no text"),
        verdicts=reader.many("verdict", {one.value: one for one in Verdict}),
        recovered=reader.many("recovered", RECOVERED),
        code=reader.one("code", str, "no code"),
        step=reader.one("step", _whole, "no step"),
        agent=reader.one("agent", str, "no agent"),
        model=reader.one("model", str, "no model"),
        tag=reader.one("tag", str, "no tag"),
        failed=reader.one("failed", _yes, "neither yes nor no"),
        judged=reader.one("judged", _yes, "neither yes nor no"),
        min_cost=reader.one("min_cost", _number, "no amount of dollars"),
        max_cost=reader.one("max_cost", _number, "no amount of dollars"),
        min_tokens=reader.one("min_tokens", _whole, "no number of tokens"),
        max_tokens=reader.one("max_tokens", _whole, "no number of tokens"),
        since=reader.one("since", _time, "no time such as 2026-03-31 or 2026-03-31T08:00"),
        until=reader.one("until", _time, "no time such as 2026-03-31 or 2026-03-31T08:00"),
    )
    by = reader.one("sort", lambda text: _of(text, SORTS), "nothing to sort by")
    descending = reader.one("dir", lambda text: _of(text, _DIRECTIONS), "no direction")
    limit = reader.one("limit", _limit, f"no number of runs from 1 to {MOST}")
    after = next((value for name, value in pairs if name == "after" and value), None)
    sort = Sort(by=by or "time", descending=descending != "asc")
    return Asked(
        filter=filter,
        sort=sort,
        limit=limit or SIZE,
        after=after,
        given=tuple(reader.given),
        wrong=tuple(reader.wrong),
    )


_DIRECTIONS = ("asc", "desc")


def unfiltered(asked: Asked) -> Asked:
    """The same order without any filter."""
    given = tuple(one for one in asked.given if one[0] in ("sort", "dir", "limit"))
    return replace(asked, filter=OverviewFilter(), given=given, after=None)


def as_dict(row: Any) -> dict[str, Any]:
    """A row as JSON data for programs."""
    hidden = {"tenant", "data", "known", "stale"}
    return {one.name: getattr(row, one.name) for one in fields(row) if one.name not in hidden}


def _of(text: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    if text not in known:
        raise ValueError(text)
    return text


def _number(text: str) -> float:
    found = float(text.removeprefix("$").replace(",", ""))
    if not math.isfinite(found):
        raise ValueError(text)
    return found


def _whole(text: str) -> int:
    plain = text.replace(",", "").replace("_", "")
    if not plain.isascii() or len(plain) > 18:
        raise ValueError(text)
    return int(plain)


def _limit(text: str) -> int:
    found = _whole(text)
    if not 1 <= found <= MOST:
        raise ValueError(text)
    return found


def _yes(text: str) -> bool:
    return {"yes": True, "no": False}[_of(text, ("yes", "no"))]


def _time(text: str) -> float:
    """A day or a moment; in UTC where it does not say otherwise."""
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
