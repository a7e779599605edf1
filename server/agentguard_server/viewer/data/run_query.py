"""Query string of the list of runs: parsing and building of filters, sort order and page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from agentguard.store.db.run_summary import SORT_COLUMNS, RunSort, RunSummaryFilter, VerdictFilter
from agentguard.store.read.pagination import MAX_PAGE_SIZE

T = TypeVar("T")

PAGE_SIZES: Final = (25, 50, 100, 200)
DEFAULT_PAGE_SIZE: Final = 50
_MAX_TEXT_CHARS: Final = 256

RECOVERY_FILTERS: Final[Mapping[str, str]] = {
    "yes": "yes",
    "no": "no",
    "unknown": "unknown",
    "pending": "pending",
    "none": "",
}
"""Values of the query parameter ``recovered``, and the store's values."""

QueryPairs = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQuery:
    """Parsed query of the list of runs.

    Attributes:
        filter, sort: filter and sort order for the store.
        limit, after: size and cursor of the page.
        parameters: valid parameters in a fixed order, without the cursor.
        problems: messages for ignored parameters.
    """

    filter: RunSummaryFilter
    sort: RunSort
    limit: int = DEFAULT_PAGE_SIZE
    after: str | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()

    def to_query_string(
        self, *, drop: Sequence[str] = (), pair: tuple[str, str] | None = None, **more: str
    ) -> str:
        """Return the query string of the first page, with changes.

        Args:
            drop: parameters to leave out.
            pair: name and value of one parameter to leave out.
            more: parameters to set; they replace those of the same name.
        """
        pairs = [
            parameter
            for parameter in self.parameters
            if parameter[0] not in (*drop, *more) and parameter != pair
        ]
        encoded = urlencode([*pairs, *more.items()], errors="replace")
        return f"?{encoded}" if encoded else "?"

    def sort_query_string(self, name: str) -> str:
        """Return the query string that sorts by a column; the current sort column changes direction."""
        descending = not self.sort.descending if self.sort.by == name else name not in _ASCENDING_FIRST
        return self.to_query_string(sort=name, dir="desc" if descending else "asc")

    def value(self, name: str) -> str:
        """Return the first value of a parameter; empty if it has no value."""
        return next((value for key, value in self.parameters if key == name), "")

    def has(self, name: str, value: str) -> bool:
        """Return whether a parameter has a value."""
        return (name, value) in self.parameters

    @property
    def filters(self) -> tuple[tuple[str, str], ...]:
        """Return the parameters that filter the list."""
        return tuple(one for one in self.parameters if one[0] not in ("sort", "dir", "limit"))


_ASCENDING_FIRST = frozenset(
    {"task", "verdict", "agent", "code", "model", "tags", "step", "recovered", "judged"}
)


class _QueryReader:
    """Reader of the parameters of a query; collects messages for those that are not valid."""

    def __init__(self, pairs: QueryPairs) -> None:
        self._pairs = [(name, value.strip()[:_MAX_TEXT_CHARS]) for name, value in pairs]
        self._known_names = {"after"}
        self.parameters: list[tuple[str, str]] = []
        self.problems: list[str] = []

    def read_one(self, name: str, read: Callable[[str], T], mistake: str) -> T | None:
        """Return the last value of a parameter; None if it is empty or not valid."""
        self._known_names.add(name)
        values = [value for key, value in self._pairs if key == name and value]
        if not values:
            return None
        try:
            parsed_value = read(values[-1])
        except ValueError:
            self.problems.append(f"{values[-1][:60]!r} is {mistake}: it is ignored")
            return None
        self.parameters.append((name, values[-1]))
        return parsed_value

    def read_many(self, name: str, known: Mapping[str, T]) -> frozenset[T]:
        """Return all values of a parameter that are keys of ``known``, as the values of ``known``."""
        self._known_names.add(name)
        values = list(dict.fromkeys(value for key, value in self._pairs if key == name and value))
        names = [value for value in values if value in known]
        self.parameters += [(name, value) for value in names]
        choices = ", ".join(known)
        self.problems += [
            f"{value[:60]!r} is not one of {choices}: it is ignored" for value in values if value not in known
        ]
        return frozenset(known[value] for value in names)

    def report_unknown_names(self) -> None:
        """Add a message for each parameter that no other method has read."""
        names = dict.fromkeys(name for name, _ in self._pairs if name not in self._known_names)
        self.problems += [f"{name[:60]!r} is not a filter: it is ignored" for name in names]


def parse_run_query(pairs: QueryPairs, *, default_sort: str = "time") -> RunQuery:
    """Parse a query; parameters that are unknown or not valid are ignored and named in ``problems``."""
    reader = _QueryReader(pairs)
    filter = RunSummaryFilter(
        text=reader.read_one("q", str, "not a text"),
        verdicts=reader.read_many("verdict", {one.value: one for one in VerdictFilter}),
        recovered=reader.read_many("recovered", RECOVERY_FILTERS),
        code=reader.read_one("code", str, "not a code"),
        step=reader.read_one("step", _parse_integer, "not a step"),
        agent=reader.read_one("agent", str, "not an agent"),
        model=reader.read_one("model", str, "not a model"),
        tag=reader.read_one("tag", str, "not a tag"),
        failed=reader.read_one("failed", _parse_yes_no, "not yes or no"),
        judged=reader.read_one("judged", _parse_yes_no, "not yes or no"),
        min_cost=reader.read_one("min_cost", _parse_number, "not an amount in dollars"),
        max_cost=reader.read_one("max_cost", _parse_number, "not an amount in dollars"),
        min_tokens=reader.read_one("min_tokens", _parse_integer, "not a number of tokens"),
        max_tokens=reader.read_one("max_tokens", _parse_integer, "not a number of tokens"),
        since=reader.read_one("since", _parse_time, "not a time such as 2026-03-31 or 2026-03-31T08:00"),
        until=reader.read_one("until", _parse_time, "not a time such as 2026-03-31 or 2026-03-31T08:00"),
    )
    sort_column = reader.read_one("sort", lambda text: _parse_choice(text, SORT_COLUMNS), "not a sort column")
    descending = reader.read_one("dir", lambda text: _parse_choice(text, _DIRECTIONS), "not a direction")
    limit = reader.read_one("limit", _parse_limit, f"not a number of runs from 1 to {MAX_PAGE_SIZE}")
    reader.report_unknown_names()
    after = next((value for name, value in pairs if name == "after" and value), None)
    sort = RunSort(by=sort_column or default_sort, descending=descending != "asc")
    return RunQuery(
        filter=filter,
        sort=sort,
        limit=limit or DEFAULT_PAGE_SIZE,
        after=after,
        parameters=tuple(reader.parameters),
        problems=tuple(reader.problems),
    )


_DIRECTIONS = ("asc", "desc")


def without_filters(query: RunQuery) -> RunQuery:
    """Return the query without its filters and cursor."""
    parameters = tuple(
        parameter for parameter in query.parameters if parameter[0] in ("sort", "dir", "limit")
    )
    return replace(query, filter=RunSummaryFilter(), parameters=parameters, after=None)


def row_to_dict(row: Any) -> dict[str, Any]:
    """Return the public fields of a row as JSON data."""
    hidden = {"tenant", "data", "known", "stale"}
    return {one.name: getattr(row, one.name) for one in fields(row) if one.name not in hidden}


def _parse_choice(text: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    if text not in known:
        raise ValueError(text)
    return text


def _parse_number(text: str) -> float:
    number = float(text.removeprefix("$").replace(",", ""))
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _parse_integer(text: str) -> int:
    digits = text.replace(",", "").replace("_", "")
    if not digits.isascii() or len(digits) > 18:
        raise ValueError(text)
    return int(digits)


def _parse_limit(text: str) -> int:
    limit = _parse_integer(text)
    if not 1 <= limit <= MAX_PAGE_SIZE:
        raise ValueError(text)
    return limit


def _parse_yes_no(text: str) -> bool:
    return {"yes": True, "no": False}[_parse_choice(text, ("yes", "no"))]


def _parse_time(text: str) -> float:
    """Parse a date or a time; UTC unless it has an offset."""
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
