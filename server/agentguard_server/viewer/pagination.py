"""A list in pages, its state in the URL; days; and data as JSON."""

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
    """The rows of one page, counted from 1, and how many there are in all."""

    rows: tuple[T, ...]
    number: int
    pages: int
    total: int


def paginate(rows: Sequence[T], page_number: str | None, *, size: int) -> ListPage[T]:
    """The page that was asked for; the nearest there is where there is none of that number."""
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
    """The query of a link: what was given, with changes; None leaves a key out."""
    merged: dict[str, str | int | None] = {**parameters, **changes}
    left = {key: value for key, value in merged.items() if value not in (None, "")}
    return f"?{urlencode(left)}" if left else "?"


def format_day(at: float) -> str:
    """The day of a time, in UTC; empty for what is no time."""
    try:
        return time.strftime("%Y-%m-%d", time.gmtime(at))
    except (OverflowError, ValueError, OSError):
        return ""


def json_response(data: Any, *, status: int = 200) -> Response:
    """Data as JSON; what of a run's texts JSON cannot hold is written out."""
    return Response(orjson.dumps(normalize_json(data)), status_code=status, media_type="application/json")
