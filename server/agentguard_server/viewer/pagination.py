"""Pagination of in-memory lists, and the query strings of its links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import urlencode

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """One page of a list; ``number`` counts from 1, and ``total`` is the number of all rows."""

    rows: tuple[T, ...]
    number: int
    pages: int
    total: int


def paginate(rows: Sequence[T], page_number: str | None, *, size: int) -> ListPage[T]:
    """Return the requested page; an invalid number becomes the nearest valid one."""
    pages = max(1, -(-len(rows) // size))
    number = (
        int(page_number)
        if page_number is not None
        and page_number.isascii()
        and page_number.isdigit()
        and len(page_number) < 9
        else 1
    )
    number = min(max(number, 1), pages)
    start = (number - 1) * size
    return ListPage(rows=tuple(rows[start : start + size]), number=number, pages=pages, total=len(rows))


def build_query(parameters: Mapping[str, str], **changes: str | int | None) -> str:
    """Return a query string with changes; None removes a key."""
    merged: dict[str, str | int | None] = {**parameters, **changes}
    fields = {key: value for key, value in merged.items() if value not in (None, "")}
    return f"?{urlencode(fields)}" if fields else "?"
