"""Pages of in-memory lists, query strings, dates and JSON responses."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

import orjson
from starlette.responses import Response

from agentguard.trajectory._safe_json import normalize_json

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


def format_day(at: float) -> str:
    """Return the UTC date of a timestamp; empty if it is out of range."""
    try:
        return time.strftime("%Y-%m-%d", time.gmtime(at))
    except (OverflowError, ValueError, OSError):
        return ""


def json_response(data: Any, *, status: int = 200) -> Response:
    """Return a JSON response; values that JSON cannot represent are written as text."""
    return Response(orjson.dumps(normalize_json(data)), status_code=status, media_type="application/json")
