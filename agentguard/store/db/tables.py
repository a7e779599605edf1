"""Tables of the store for SQLAlchemy Core. Migrations create them; tests compare both.

A column has the name of the row's field. Its ``info["kind"]`` determines which values it accepts and how they
are converted:

``id``      identifier: rejected if empty, longer than `MAX_ID` or not printable
``text``    text for search and lists: cut and cleaned to fit; the row's data keeps the original
``packed``  JSON as encoded by `agentguard.store.db.payload`
``bytes``   raw bytes: rejected if longer than `MAX_STATE`
``plain``   a number or a boolean
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    and_,
    not_,
)
from sqlalchemy.dialects.postgresql import TSVECTOR

from agentguard.store.db import rows
from agentguard.store.db.run_summary import RunSummaryRow

PREFIX = "agentguard_"
MAX_ID = 256
MAX_TENANT = 64
MAX_TEXT = 256
MAX_STATE = 32 * 1024 * 1024

metadata = MetaData()


def _id(name: str, *, key: bool = False) -> Column[str]:
    return Column(name, Text, nullable=False, primary_key=key, info={"kind": "id"})


def _optional_id(name: str, *, key: bool = False, null: bool = False) -> Column[str]:
    return Column(name, Text, nullable=null, primary_key=key, info={"kind": "id", "empty": True})


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False, info={"kind": "text"})


def _int(name: str, *, key: bool = False, null: bool = False) -> Column[int]:
    return Column(
        name, BigInteger, nullable=null, primary_key=key, autoincrement=False, info={"kind": "plain"}
    )


def _real(name: str, *, null: bool = True) -> Column[float]:
    return Column(name, Double, nullable=null, info={"kind": "plain"})


def _flag(name: str, *, null: bool = False) -> Column[bool]:
    return Column(name, Boolean, nullable=null, info={"kind": "plain"})


def _payload(name: str) -> Column[bytes]:
    return Column(name, LargeBinary, nullable=False, info={"kind": "packed"})


def _bytes(name: str) -> Column[bytes]:
    return Column(name, LargeBinary, nullable=False, info={"kind": "bytes"})


def _table(name: str, *columns: Column[Any], indexes: tuple[tuple[str, ...], ...] = ()) -> Table:
    """Return a table; its key and its indexes begin with the tenant, because every query has a tenant."""
    full_name = PREFIX + name
    return Table(
        full_name,
        metadata,
        Column("tenant", Text, nullable=False, primary_key=True, info={"kind": "tenant"}),
        *columns,
        _real("created_at", null=False),
        _payload("data"),
        *(
            Index(f"{full_name}_{'_'.join(index_columns)}", "tenant", *index_columns)
            for index_columns in indexes
        ),
    )


_CREATION_INDEX = ("created_at", "id")
_RUN_INDEX = ("run_id", "created_at", "id")

RUNS = _table(
    "runs",
    _id("id", key=True),
    _text("format"),
    _text("task"),
    _text("group"),
    _flag("failed", null=True),
    _int("length"),
    _payload("annotation"),
    indexes=(_CREATION_INDEX, ("group",)),
)
STEPS = _table(
    "steps",
    _id("run_id", key=True),
    _optional_id("line", key=True),
    _int("index", key=True),
    _text("source"),
    _text("agent"),
)
BRANCHES = _table(
    "branches",
    _id("run_id", key=True),
    _id("id", key=True),
    _int("fork_step"),
    _optional_id("parent", null=True),
    _int("place"),
)
SNAPSHOTS = _table(
    "snapshots",
    _id("run_id", key=True),
    _int("step", key=True),
    _bytes("state"),
)
FINDINGS = _table(
    "findings",
    _id("id", key=True),
    _id("run_id"),
    _text("detector"),
    _int("step", null=True),
    _text("code"),
    _real("probability"),
    indexes=(_RUN_INDEX,),
)
DIAGNOSES = _table(
    "diagnoses",
    _id("id", key=True),
    _id("run_id"),
    _text("method"),
    _text("verdict"),
    _real("probability"),
    _int("step", null=True),
    _text("agent"),
    _text("module"),
    _text("code"),
    indexes=(_RUN_INDEX,),
)
SCHEMATA = _table(
    "schemata",
    _id("id", key=True),
    _text("status"),
    _text("origin"),
    _text("method"),
    _text("code"),
    _text("module"),
    _int("version"),
    _int("support"),
    _real("updated_at", null=False),
    indexes=(_CREATION_INDEX,),
)
ISSUES = _table(
    "issues",
    _id("id", key=True),
    _text("agent"),
    _text("code"),
    _text("module"),
    _text("title"),
    _text("owner"),
    _text("state"),
    _real("resolved_at"),
)
SAVED_VIEWS = _table(
    "saved_views",
    _id("name", key=True),
    _text("query"),
)
VERDICTS = _table(
    "verdicts",
    _id("key", key=True),
    _text("judge"),
    _text("judge_version"),
    _text("question"),
    _optional_id("run_id"),
    indexes=(("run_id",), ("created_at",)),
)
RECOVERIES = _table(
    "recoveries",
    _id("id", key=True),
    _id("run_id"),
    _text("strategy"),
    _int("step", null=True),
    _text("outcome"),
    _optional_id("schema_id"),
    _real("updated_at", null=False),
    indexes=(_RUN_INDEX, ("schema_id",)),
)
EFFECTS = _table(
    "effects",
    _id("key", key=True),
    _id("run_id"),
    _optional_id("line"),
    _text("tool"),
    _text("arguments"),
    _text("logical_step"),
    _text("state"),
    _real("settled_at"),
    indexes=(("run_id", "created_at"),),
)
JUDGEMENTS = _table(
    "judgements",
    _id("id", key=True),
    _optional_id("run_id"),
    _text("subject"),
    _optional_id("subject_id"),
    _flag("right"),
    _text("by"),
    indexes=(_RUN_INDEX, ("subject_id",)),
)

ACCEPTANCES = _table(
    "acceptances",
    _id("id", key=True),
    _id("run_id"),
    _int("attempt"),
    _flag("accepted"),
    indexes=(_RUN_INDEX, _CREATION_INDEX),
)

OVERVIEWS = _table(
    "overviews",
    _id("run_id", key=True),
    _text("task"),
    _text("format"),
    _flag("failed", null=True),
    _real("began_at", null=False),
    _real("started_at"),
    _real("ended_at"),
    _real("duration_s"),
    _int("steps"),
    _int("tokens", null=True),
    _real("cost_usd"),
    _text("models"),
    _text("tags"),
    _text("agents"),
    _text("tools"),
    _text("verdict"),
    _real("probability"),
    _text("method"),
    _int("step", null=True),
    _real("step_probability"),
    _text("agent"),
    _text("module"),
    _text("code"),
    _real("diagnosed_at"),
    _real("guard_s"),
    _int("findings"),
    _int("recoveries"),
    _text("recovered"),
    _text("judged"),
    _flag("known"),
    _flag("stale"),
    _flag("indexed"),
    _real("updated_at", null=False),
    indexes=(("began_at", "run_id"), ("updated_at",)),
)
_is_unindexed = and_(OVERVIEWS.c.known, not_(OVERVIEWS.c.indexed))
Index(
    f"{OVERVIEWS.name}_unindexed",
    OVERVIEWS.c.tenant,
    OVERVIEWS.c.updated_at,
    sqlite_where=_is_unindexed,
    postgresql_where=_is_unindexed,
)
SESSIONS = _table(
    "sessions",
    _id("key", key=True),
    _optional_id("run_id"),
    _int("version"),
    _real("updated_at", null=False),
    indexes=(("run_id",), ("updated_at",)),
)
HINTS = _table(
    "hints",
    _id("machine", key=True),
    _id("backend", key=True),
    _text("trouble"),
    _real("seconds", null=False),
    _real("updated_at", null=False),
    _int("number"),
    indexes=(("updated_at",),),
)
# Numbers of runs, derived from the summaries (`agentguard.store.write.run_counts`).
RUN_COUNTS = Table(
    f"{PREFIX}run_counts",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("day", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, primary_key=True),
    Column("runs", BigInteger, nullable=False),
)
# Words of runs for the search in their contents (`agentguard.store.write.search_index`).
SEARCH_DOCUMENTS = Table(
    f"{PREFIX}search_documents",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("words", Text().with_variant(TSVECTOR, "postgresql"), nullable=False),
    Index(f"{PREFIX}search_documents_run_id", "tenant", "run_id", unique=True),
)
# Shared totals of all tenants.
SPENDING = Table(
    f"{PREFIX}spending",
    metadata,
    Column("subject", String(200), primary_key=True),
    Column("period", String(10), primary_key=True),
    Column("usd", Double, nullable=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMapping:
    """Table of a row type, and its rules for writing an existing key.

    Attributes:
        table: the table.
        replaces_existing: True if a new row replaces the stored row of the same key; False if the first one
            remains.
        version_column: a column that must not decrease; a row with a lower value does not replace the stored
            one.
        preserved_columns: columns that keep their first value.
    """

    table: Table
    replaces_existing: bool = True
    version_column: str | None = None
    preserved_columns: frozenset[str] = frozenset()


TABLE_MAPPINGS: dict[type[rows.Row], TableMapping] = {
    rows.RunRow: TableMapping(table=RUNS, preserved_columns=frozenset({"created_at"})),
    rows.StepRow: TableMapping(table=STEPS),
    rows.BranchRow: TableMapping(table=BRANCHES, replaces_existing=False),
    rows.SnapshotRow: TableMapping(table=SNAPSHOTS),
    rows.FindingRow: TableMapping(table=FINDINGS, replaces_existing=False),
    rows.DiagnosisRow: TableMapping(table=DIAGNOSES, replaces_existing=False),
    rows.SchemaRow: TableMapping(table=SCHEMATA, version_column="version"),
    rows.IssueRow: TableMapping(table=ISSUES, preserved_columns=frozenset({"created_at"})),
    rows.SavedViewRow: TableMapping(table=SAVED_VIEWS, preserved_columns=frozenset({"created_at"})),
    rows.VerdictRow: TableMapping(table=VERDICTS),
    rows.RecoveryRow: TableMapping(table=RECOVERIES),
    rows.EffectRow: TableMapping(table=EFFECTS, replaces_existing=False),
    rows.JudgementRow: TableMapping(table=JUDGEMENTS),
    rows.AcceptanceRow: TableMapping(table=ACCEPTANCES, replaces_existing=False),
    rows.SessionRow: TableMapping(
        table=SESSIONS, version_column="version", preserved_columns=frozenset({"created_at"})
    ),
    rows.HealthHintRow: TableMapping(table=HINTS, version_column="number"),
    RunSummaryRow: TableMapping(table=OVERVIEWS),
}

TABLES: dict[str, Table] = {
    name.removeprefix(PREFIX): table
    for name, table in metadata.tables.items()
    if table not in (RUN_COUNTS, SEARCH_DOCUMENTS, SPENDING)
}
"""Tables of rows by name without the prefix; retention and statistics include them."""

RUN_TABLES: tuple[Table, ...] = (
    STEPS, BRANCHES, SNAPSHOTS, FINDINGS, DIAGNOSES, VERDICTS, RECOVERIES, EFFECTS, JUDGEMENTS, OVERVIEWS,
    SESSIONS, ACCEPTANCES,
)  # fmt: skip
"""Tables whose rows refer to a run by ``run_id``."""
