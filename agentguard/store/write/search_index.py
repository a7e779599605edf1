"""Full-text index of the contents of runs: FTS5 of SQLite, or a GIN index of PostgreSQL.

Writers only mark a run as not indexed. `update_search_index` adds the words of such runs later, and a search
reads their steps until then. So a write takes no longer, and a search misses no run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Text,
    and_,
    bindparam,
    cast,
    column,
    delete,
    func,
    insert,
    literal,
    not_,
    select,
    table,
    text,
    update,
)

from agentguard.errors import FormatError, StoreError
from agentguard.store.db.engine import IMMEDIATE_TRANSACTION
from agentguard.store.db.payload import decode_payload
from agentguard.store.db.search_words import EVERY_WORD, extract_words
from agentguard.store.db.tables import OVERVIEWS, PREFIX, SEARCH_DOCUMENTS, STEPS
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Step
from agentguard.trajectory.serialization import decode_step

FTS_TABLE: Final = f"{PREFIX}search_index"
"""Virtual table of SQLite; it exists after the first update of the index."""
_RUNS_PER_TRANSACTION: Final = 20
_ROWS_PER_FETCH: Final = 200
_MAX_DOCUMENT_CHARS: Final = 512 * 1024  # a tsvector holds at most 1 MiB
_SUMMARY = OVERVIEWS.c
_DOCUMENT = SEARCH_DOCUMENTS.c

# External-content table: https://www.sqlite.org/fts5.html#external_content_tables.
# `trusted_schema` is off, so no trigger can write to it. Queries ask for runs with all words, which needs no
# positions of words (`detail`).
_CREATE_INDEX: Final = {
    "sqlite": (
        f"CREATE VIRTUAL TABLE IF NOT EXISTS {FTS_TABLE} USING fts5("
        f"words, content='{SEARCH_DOCUMENTS.name}', content_rowid='id', detail=none, columnsize=0, "
        "tokenize='ascii')"
    ),
    # A search reads the whole list of pending entries; the default limit is 4 MB.
    "postgresql": (
        f"CREATE INDEX IF NOT EXISTS {FTS_TABLE} ON {SEARCH_DOCUMENTS.name} USING gin (words) "
        "WITH (gin_pending_list_limit = 256)"
    ),
}
_FTS = table(FTS_TABLE, column("rowid"), column("words"), column(FTS_TABLE))


class _RunVersion(NamedTuple):
    """Run that is not indexed, at the time of its last change."""

    tenant: str
    run_id: str
    updated_at: float


def update_search_index(
    engine: Engine, *, min_age_s: float = 0.0, timeout_s: float | None = None, tenant: str | None = None
) -> int:
    """Add the words of runs that are not indexed; return the number of runs.

    Each transaction adds at most 20 runs, so that writers never wait long. A run that changes during the
    update remains for the next one.

    Args:
        engine: engine of the database.
        min_age_s: minimum time in seconds since the last change of a run.
        timeout_s: time after which no further transaction begins.
        tenant: only runs of this tenant; None means all tenants.

    Raises:
        StoreError: the SQLite library has no FTS5.
        sqlalchemy.exc.SQLAlchemyError, OSError: the database cannot be used now.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    number = 0
    while deadline is None or time.monotonic() < deadline:
        documents = _read_documents(engine, time.time() - min_age_s, tenant)
        if not documents:
            break
        if not number:
            _create_index(engine)
        written = _write_documents(engine, documents)
        if not written:
            break
        number += written
    return number


def is_unindexed(tenant: str | None) -> Any:
    """Return the condition that a run of a tenant is not indexed; None matches all tenants."""
    condition = and_(_SUMMARY.known, not_(_SUMMARY.indexed))
    return condition if tenant is None else and_(_SUMMARY.tenant == tenant, condition)


def iter_step_texts(step: Step) -> Iterator[tuple[str, str]]:
    """Yield the texts of a step in which a search looks, each with the name of its field."""
    yield from step.texts()
    yield from (("tool", call.name) for call in step.tool_calls)


def delete_documents(connection: Connection, condition: ColumnElement[bool]) -> None:
    """Delete documents from the table and from the index."""
    if connection.dialect.name == "sqlite":
        documents = select(literal("delete"), _DOCUMENT.id, _DOCUMENT.words).where(condition)
        if connection.execute(select(documents.exists())).scalar():
            connection.execute(insert(_FTS).from_select([FTS_TABLE, "rowid", "words"], documents))
    connection.execute(delete(SEARCH_DOCUMENTS).where(condition))


def has_full_text_search(connection: Connection) -> bool:
    """Return whether the database library can have the index."""
    if connection.dialect.name == "postgresql":
        return True
    option = text("SELECT sqlite_compileoption_used('ENABLE_FTS5')")
    return bool(connection.execute(option).scalar_one())


def _create_index(engine: Engine) -> None:
    with engine.connect().execution_options(**IMMEDIATE_TRANSACTION) as connection, connection.begin():
        if not has_full_text_search(connection):
            raise StoreError(
                "this SQLite library lacks FTS5, which the search index needs: use a Python whose sqlite3 "
                "has FTS5, or PostgreSQL. Without the index, a search reads all steps"
            )
        connection.execute(text(_CREATE_INDEX[connection.dialect.name]))


def _read_documents(engine: Engine, before: float, tenant: str | None) -> dict[_RunVersion, str]:
    """Return the words of at most 20 runs that are not indexed, from one snapshot of the database."""
    query = select(_SUMMARY.tenant, _SUMMARY.run_id, _SUMMARY.updated_at).where(
        is_unindexed(tenant), _SUMMARY.updated_at <= before
    )
    with engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            runs = connection.execute(query.limit(_RUNS_PER_TRANSACTION)).all()
            return {_RunVersion(*run): _read_words(connection, run.tenant, run.run_id) for run in runs}


def _read_words(connection: Connection, tenant: str, run_id: str) -> str:
    """Return the words of a run, separated by spaces."""
    query = select(STEPS.c.data).where(STEPS.c.tenant == tenant, STEPS.c.run_id == run_id)
    words: set[str] = set()
    for (data,) in connection.execute(query.execution_options(yield_per=_ROWS_PER_FETCH)):
        try:
            step = decode_step(JsonNode.from_value(decode_payload(data)[0]))
        except (StoreError, FormatError):
            words.add(EVERY_WORD)
            continue
        for _, value in iter_step_texts(step):
            words |= extract_words(value)
    document = " ".join(sorted(words))
    return document if len(document) <= _MAX_DOCUMENT_CHARS else EVERY_WORD


def _write_documents(engine: Engine, documents: dict[_RunVersion, str]) -> int:
    """Write the words of those runs that have not changed or been deleted; return their number."""
    is_unchanged = and_(
        _SUMMARY.tenant == bindparam("of_tenant"),
        _SUMMARY.run_id == bindparam("of_run"),
        _SUMMARY.updated_at == bindparam("of_version"),
    )
    mark = update(OVERVIEWS).where(is_unchanged).values(indexed=True)
    number = 0
    with engine.connect().execution_options(**IMMEDIATE_TRANSACTION) as connection, connection.begin():
        words: Any = bindparam("words")
        if connection.dialect.name == "postgresql":
            words = func.array_to_tsvector(func.string_to_array(cast(words, Text), " "))
        addition = insert(SEARCH_DOCUMENTS).values(
            tenant=bindparam("tenant"), run_id=bindparam("run_id"), words=words
        )
        for run, document in sorted(documents.items()):
            tenant, run_id, version = run
            # The update locks the summary, so that no concurrent transaction deletes or changes the run.
            keys = {"of_tenant": tenant, "of_run": run_id, "of_version": version}
            if not connection.execute(mark, keys).rowcount:
                continue
            delete_documents(connection, and_(_DOCUMENT.tenant == tenant, _DOCUMENT.run_id == run_id))
            values = {"tenant": tenant, "run_id": run_id, "words": document}
            added = connection.execute(addition, values)
            if connection.dialect.name == "sqlite":
                connection.execute(insert(_FTS).values(rowid=added.lastrowid, words=document))
            number += 1
    return number
