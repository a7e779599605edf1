"""Reading in pages: by the key of the last row seen, so that a late page costs no more than the first."""

from __future__ import annotations

import base64
import binascii
import json
import math
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from agentguard.errors import StoreError
from agentguard.store.db.rows import Row

R = TypeVar("R", bound=Row)

MAX_PAGE_SIZE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Which rows: at most ``limit`` (1 to 1000), after the place that ``after`` names (`ResultPage.next`)."""

    limit: int = 100
    after: str | None = None

    def __post_init__(self) -> None:
        if (
            isinstance(self.limit, bool)
            or not isinstance(self.limit, int)
            or not 1 <= self.limit <= MAX_PAGE_SIZE
        ):
            raise StoreError(f"the limit of a page lies between 1 and {MAX_PAGE_SIZE}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultPage(Generic[R]):
    """A page of rows; ``next`` is the `Page.after` of the page that follows, None for the last."""

    rows: tuple[R, ...]
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs: all fields that are not None must hold. Texts are compared by their first 256 characters.

    Attributes:
        failed: whether the run failed; only runs of which that is known.
        format: name of the importer.
        group: runs of one question, as `agentguard.trajectory.grouping.normalize_group_key` makes them equal.
        since, until: created at or after, created before; epoch seconds.
    """

    failed: bool | None = None
    format: str | None = None
    group: str | None = None
    since: float | None = None
    until: float | None = None


def encode_cursor(created_at: float, id: str) -> str:
    """Where a page ended, as text that may go into a URL."""
    return base64.urlsafe_b64encode(json.dumps([created_at, id]).encode()).decode().rstrip("=")


def decode_cursor(text: str) -> tuple[float, str]:
    """What `place` was made of. Raises StoreError on any other text."""
    try:
        raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        found: Any = json.loads(raw)
    except (ValueError, binascii.Error, RecursionError):
        found = None
    if (
        not isinstance(found, list)
        or len(found) != 2
        or not isinstance(found[0], float)
        or not math.isfinite(found[0])
        or not isinstance(found[1], str)
    ):
        raise StoreError("the place a page begins after is not one that the store gave")
    return found[0], found[1]
