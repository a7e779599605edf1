"""Search for a text in the stored steps of runs, newest runs first.

The search reads the steps and uses no index. So writes cost nothing more, and it finds parts of words.
A time limit and a cursor bound its cost.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, select

from agentguard.errors import FormatError, StoreError
from agentguard.store.db.payload import decode_payload, decompress_payload
from agentguard.store.db.row_mapping import validate_query_tenant
from agentguard.store.db.run_summary import RunSort, RunSummaryFilter, RunSummaryRow
from agentguard.store.db.statements import match_any_id, to_id_parameter
from agentguard.store.db.tables import STEPS
from agentguard.store.read.pagination import Page
from agentguard.store.read.run_summaries import fetch_page
from agentguard.trajectory._json_node import JsonNode
from agentguard.trajectory.model import Step
from agentguard.trajectory.serialization import decode_step

MAX_MATCHES_PER_RUN: Final = 3
_RUNS_PER_QUERY: Final = 25
_ROWS_PER_FETCH: Final = 500
_CHARS_BEFORE, _CHARS_AFTER = 60, 160
_ASCII_WORD = re.compile(r"[A-Za-z0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMatch:
    """First match in a step, with its excerpt ``before`` + ``match`` + ``after``.

    Attributes:
        branch_id: id of the abandoned branch; empty for the current branch.
        step, agent: index and agent of the step.
        field: field of the step, as in `Step.texts`.
    """

    branch_id: str
    step: int
    agent: str
    field: str
    before: str
    match: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMatches:
    """Run with its first `MAX_MATCHES_PER_RUN` steps that match; ``step_count`` counts all of them."""

    run: RunSummaryRow
    matches: tuple[StepMatch, ...]
    step_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSearchResult:
    """Runs whose steps contain a text.

    Attributes:
        runs: newest first.
        searched_runs: number of runs that were read.
        unreadable_steps: number of damaged steps, which were not searched.
        next: cursor to continue; None after the last run.
    """

    runs: tuple[RunMatches, ...]
    searched_runs: int
    unreadable_steps: int
    next: str | None = None


@dataclass(slots=True)
class _Match:
    matches: list[StepMatch]
    step_count: int = 0


class StepSearcher:
    """Search for one text; upper and lower case and the kind of white space make no difference."""

    def __init__(self, text: str, tenant: str) -> None:
        """Compile the text. Raises StoreError if it is empty."""
        words = text.split()
        if not words:
            raise StoreError("the text to search for is empty")
        self._pattern = re.compile(r"\s+".join(map(re.escape, words)), re.IGNORECASE)
        # JSON escapes no ASCII letters and digits, so a step without this word needs no decoding.
        self._word = max(_ASCII_WORD.findall(text), key=len, default="").lower().encode()
        self._tenant = validate_query_tenant(tenant)
        self._unreadable_steps = 0

    def search(
        self, connection: Connection, filter: RunSummaryFilter, page: Page, timeout_s: float | None
    ) -> StepSearchResult:
        """Search runs until ``page.limit`` runs match; reads runs in groups, so a few more may match."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        found: list[RunMatches] = []
        searched_runs, after = 0, page.after
        while True:
            group = fetch_page(
                connection, filter, RunSort(), Page(limit=_RUNS_PER_QUERY, after=after), self._tenant
            )
            by_run = self._search_group(connection, [run.run_id for run in group.rows])
            found += (
                RunMatches(run=run, matches=tuple(match.matches), step_count=match.step_count)
                for run in group.rows
                if (match := by_run.get(run.run_id)) is not None
            )
            searched_runs, after = searched_runs + len(group.rows), group.next
            is_late = deadline is not None and time.monotonic() >= deadline
            if after is None or len(found) >= page.limit or is_late:
                return StepSearchResult(
                    runs=tuple(found),
                    searched_runs=searched_runs,
                    unreadable_steps=self._unreadable_steps,
                    next=after,
                )

    def _search_group(self, connection: Connection, run_ids: list[str]) -> dict[str, _Match]:
        dialect = connection.dialect.name
        columns = STEPS.c.run_id, STEPS.c.line, STEPS.c.index, STEPS.c.data
        query = select(*columns).where(STEPS.c.tenant == self._tenant, match_any_id(STEPS.c.run_id, dialect))
        rows = connection.execution_options(yield_per=_ROWS_PER_FETCH).execute(
            query.order_by(STEPS.c.run_id, STEPS.c.line, STEPS.c.index),
            {"ids": to_id_parameter(run_ids, dialect)},
        )
        by_run: dict[str, _Match] = {}
        for run_id, line, index, data in rows:
            match = self._match_step(line, index, data)
            if match is not None:
                run = by_run.setdefault(run_id, _Match([]))
                run.step_count += 1
                if len(run.matches) < MAX_MATCHES_PER_RUN:
                    run.matches.append(match)
        return by_run

    def _match_step(self, branch_id: str, index: int, data: bytes) -> StepMatch | None:
        try:
            if self._word not in decompress_payload(data).lower():
                return None
            step = decode_step(JsonNode.from_value(decode_payload(data)[0]))
        except (StoreError, FormatError):
            self._unreadable_steps += 1
            return None
        for field, text in _iter_texts(step):
            found = self._pattern.search(text)
            if found is not None:
                begin, end = found.span()
                return StepMatch(
                    branch_id=branch_id,
                    step=index,
                    agent=step.agent,
                    field=field,
                    before=("…" if begin > _CHARS_BEFORE else "")
                    + text[max(0, begin - _CHARS_BEFORE) : begin],
                    match=found.group(),
                    after=text[end : end + _CHARS_AFTER] + ("…" if len(text) > end + _CHARS_AFTER else ""),
                )
        return None


def _iter_texts(step: Step) -> Iterator[tuple[str, Any]]:
    yield from step.texts()
    yield from (("tool", call.name) for call in step.tool_calls)
