"""Runs that may contain a text, according to the search index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, inspect, select, text

from agentguard.store.db.run_summary import RunSummaryRow
from agentguard.store.db.search_words import EVERY_WORD, IndexQuery
from agentguard.store.db.statements import to_id_parameter
from agentguard.store.db.tables import OVERVIEWS, SEARCH_DOCUMENTS
from agentguard.store.write.search_index import FTS_TABLE, has_full_text_search, is_unindexed

_DOCUMENTS: Final = SEARCH_DOCUMENTS.name
# SQLite: CROSS JOIN makes the index the outer loop. Else each document could be looked up in the index.
# PostgreSQL: without the CTE, and with sequential scans, it may read the words of all documents of a tenant:
# its estimate lacks their decompression. With 6,000 documents, that took 31 ms instead of 0.1 ms.
_ALL_MATCHES: Final = {
    "sqlite": (
        f"SELECT run_id FROM {FTS_TABLE} CROSS JOIN {_DOCUMENTS} ON id = {FTS_TABLE}.rowid "  # noqa: S608
        f"WHERE {FTS_TABLE} MATCH :query AND tenant = :tenant LIMIT :limit"
    ),
    "postgresql": (
        f"WITH matches AS MATERIALIZED (SELECT tenant, run_id FROM {_DOCUMENTS} "  # noqa: S608
        "WHERE words @@ CAST(:query AS tsquery)) "
        "SELECT run_id FROM matches WHERE tenant = :tenant LIMIT :limit"
    ),
}
_MATCHES_AMONG_RUNS: Final = {
    "sqlite": (
        f"SELECT run_id FROM {FTS_TABLE} CROSS JOIN {_DOCUMENTS} ON id = {FTS_TABLE}.rowid "  # noqa: S608
        f"WHERE {FTS_TABLE} MATCH :query AND {FTS_TABLE}.rowid IN (SELECT id FROM {_DOCUMENTS} "
        "WHERE tenant = :tenant AND run_id IN (SELECT value FROM json_each(:ids)))"
    ),
    "postgresql": (
        f"SELECT run_id FROM {_DOCUMENTS} "  # noqa: S608
        "WHERE words @@ CAST(:query AS tsquery) AND tenant = :tenant AND run_id = ANY(:ids)"
    ),
}


class CandidateRuns:
    """Runs of a tenant that have the words of a query or are not indexed.

    Args:
        connection: connection in a transaction.
        query: words of the text; None if the index cannot narrow the search.
        tenant: tenant that owns the runs.
    """

    def __init__(self, connection: Connection, query: IndexQuery | None, tenant: str) -> None:
        self._connection, self._tenant = connection, tenant
        self._query = ""
        if query is not None and _has_index(connection):
            self._query = _BUILDERS[connection.dialect.name](query)

    def count_unindexed(self, max_count: int) -> int:
        """Return the number of runs that are not indexed, at most ``max_count``."""
        return len(self._list_unindexed(max_count))

    def list_ids(self, max_count: int) -> list[str] | None:
        """Return the ids of all candidates; None if there are more than ``max_count``."""
        if not self._query:
            return None
        ids = dict.fromkeys(self._list_unindexed(max_count + 1))
        if len(ids) <= max_count:
            ids |= dict.fromkeys(self._list_matches(max_count + 1))
        return list(ids) if len(ids) <= max_count else None

    def select(self, runs: Sequence[RunSummaryRow]) -> list[str]:
        """Return the ids of the runs that are candidates."""
        ids = [run.run_id for run in runs]
        if not self._query or not ids:
            return ids
        dialect = self._connection.dialect.name
        matching = set(self._execute(_MATCHES_AMONG_RUNS, ids=to_id_parameter(ids, dialect)))
        return [run.run_id for run in runs if not run.indexed or run.run_id in matching]

    def _list_unindexed(self, max_count: int) -> list[str]:
        query = select(OVERVIEWS.c.run_id).where(is_unindexed(self._tenant)).limit(max_count)
        return list(self._connection.execute(query).scalars())

    def _list_matches(self, max_count: int) -> list[str]:
        if self._connection.dialect.name != "postgresql":
            return self._execute(_ALL_MATCHES, limit=max_count)
        self._connection.execute(text("SET LOCAL enable_seqscan = off"))
        ids = self._execute(_ALL_MATCHES, limit=max_count)
        self._connection.execute(text("SET LOCAL enable_seqscan = DEFAULT"))
        return ids

    def _execute(self, statements: Mapping[str, str], **values: Any) -> list[str]:
        parameters = {"query": self._query, "tenant": self._tenant, **values}
        statement = text(statements[self._connection.dialect.name])
        return list(self._connection.execute(statement, parameters).scalars())


def _has_index(connection: Connection) -> bool:
    if connection.dialect.name == "postgresql":
        return True
    return has_full_text_search(connection) and inspect(connection).has_table(FTS_TABLE)


def _build_fts_query(query: IndexQuery) -> str:
    parts = [f'"{word}"' for word in query.words] + ([f'"{query.prefix}" *'] if query.prefix else [])
    return f'({" AND ".join(parts)}) OR "{EVERY_WORD}"'


def _build_tsquery(query: IndexQuery) -> str:
    parts = [f"'{word}'" for word in query.words] + ([f"'{query.prefix}':*"] if query.prefix else [])
    return f"({' & '.join(parts)}) | '{EVERY_WORD}'"


_BUILDERS: Final = {"sqlite": _build_fts_query, "postgresql": _build_tsquery}
