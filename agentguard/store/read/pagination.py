"""Keyset pagination: a page begins after the key of the last row, so that all pages have the same cost."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from agentguard.errors import StoreError
from agentguard.store.db.rows import Row

R = TypeVar("R", bound=Row)

MAX_PAGE_SIZE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Requested page: at most ``limit`` rows (1 to 1000) after the cursor ``after`` (`ResultPage.next`)."""

    limit: int = 100
    after: str | None = None

    def __post_init__(self) -> None:
        if (
            isinstance(self.limit, bool)
            or not isinstance(self.limit, int)
            or not 1 <= self.limit <= MAX_PAGE_SIZE
        ):
            raise StoreError(f"the limit of a page must be from 1 to {MAX_PAGE_SIZE}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultPage(Generic[R]):
    """Page of rows; ``next`` is the cursor of the next page, None for the last page."""

    rows: tuple[R, ...]
    next: str | None = None


def iter_rows(list_page: Callable[[Page], ResultPage[R]], *, page_size: int = 500) -> Iterator[R]:
    """Yield the rows of all pages.

    Args:
        list_page: function that returns a page, such as `Store.list_runs` with a filter.
        page_size: rows of a page.
    """
    page: Page | None = Page(limit=page_size)
    while page is not None:
        result = list_page(page)
        yield from result.rows
        page = None if result.next is None else Page(limit=page_size, after=result.next)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Filter of runs; all fields that are not None must match.

    Attributes:
        failed: whether the run failed; excludes runs for which that is unknown.
        format: name of the importer. Texts are compared by their first 256 characters.
        group: group key of the question (`agentguard.trajectory.grouping.normalize_group_key`).
        since, until: created at or after, created before; epoch seconds.
    """

    failed: bool | None = None
    format: str | None = None
    group: str | None = None
    since: float | None = None
    until: float | None = None


def encode_cursor(*position: Any) -> str:
    """Return the URL-safe cursor of a position: JSON values that identify the last row of a page."""
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip("=")


def decode_cursor(text: str) -> Any:
    """Return the position of a cursor as a JSON value. Raises StoreError if the cursor is invalid."""
    try:
        raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise StoreError("the cursor of the page was not created by the store") from None


def decode_row_cursor(text: str) -> tuple[float, str]:
    """Return creation time and id of a cursor. Raises StoreError if the cursor is invalid."""
    match decode_cursor(text):
        case [float(created_at), str(id)] if math.isfinite(created_at):
            return created_at, id
    raise StoreError("the cursor of the page was not created by the store")
