"""Migration 0001: the first tables."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_PREFIX = "agentguard_"


def _text(name: str, *, key: bool = False, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Text, nullable=null, primary_key=key)


def _int(name: str, *, key: bool = False, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger, nullable=null, primary_key=key, autoincrement=False)


def _real(name: str, *, null: bool = True) -> sa.Column[Any]:
    return sa.Column(name, sa.Double, nullable=null)


def _flag(name: str, *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Boolean, nullable=null)


def _bytes(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.LargeBinary, nullable=False)


def _create(name: str, *columns: sa.Column[Any], indexes: tuple[tuple[str, ...], ...] = ()) -> None:
    table = _PREFIX + name
    op.create_table(
        table, _text("tenant", key=True), *columns, _real("created_at", null=False), _bytes("data")
    )
    for one in indexes:
        op.create_index(f"{table}_{'_'.join(one)}", table, ["tenant", *one])


_MADE = ("created_at", "id")
_OF_RUN = ("run_id", "created_at", "id")


def upgrade() -> None:
    """Create the tables."""
    _runs()
    _learnt()
    _done()


def _runs() -> None:
    _create(
        "runs",
        _text("id", key=True),
        _text("format"),
        _text("task"),
        _text("group"),
        _flag("failed", null=True),
        _int("length"),
        _bytes("annotation"),
        indexes=(_MADE, ("group",)),
    )
    _create(
        "steps",
        _text("run_id", key=True),
        _text("line", key=True),
        _int("index", key=True),
        _text("source"),
        _text("agent"),
    )
    _create(
        "branches",
        _text("run_id", key=True),
        _text("id", key=True),
        _int("fork_step"),
        _text("parent", null=True),
        _int("place"),
    )


def _learnt() -> None:
    _create(
        "findings",
        _text("id", key=True),
        _text("run_id"),
        _text("detector"),
        _int("step", null=True),
        _text("code"),
        _real("probability"),
        indexes=(_OF_RUN,),
    )
    _create(
        "diagnoses",
        _text("id", key=True),
        _text("run_id"),
        _text("method"),
        _text("verdict"),
        _real("probability"),
        _int("step", null=True),
        _text("agent"),
        _text("module"),
        _text("code"),
        indexes=(_OF_RUN,),
    )
    _create(
        "schemata",
        _text("id", key=True),
        _text("status"),
        _text("origin"),
        _text("method"),
        _text("code"),
        _text("module"),
        _int("version"),
        _int("support"),
        _real("updated_at", null=False),
        indexes=(_MADE,),
    )
    _create(
        "verdicts",
        _text("key", key=True),
        _text("judge"),
        _text("judge_version"),
        _text("question"),
        _text("run_id"),
        indexes=(("run_id",), ("created_at",)),
    )


def _done() -> None:
    _create(
        "recoveries",
        _text("id", key=True),
        _text("run_id"),
        _text("strategy"),
        _int("step", null=True),
        _text("outcome"),
        _text("schema_id"),
        _real("updated_at", null=False),
        indexes=(_OF_RUN, ("schema_id",)),
    )
    _create(
        "effects",
        _text("key", key=True),
        _text("run_id"),
        _text("line"),
        _text("tool"),
        _text("arguments"),
        _text("logical_step"),
        _text("state"),
        _real("settled_at"),
        indexes=(("run_id", "created_at"),),
    )
    _create(
        "backend_events",
        _text("id", key=True),
        _text("backend"),
        _text("kind"),
        _text("run_id"),
        indexes=(_MADE, ("run_id",)),
    )
    _create(
        "judgements",
        _text("id", key=True),
        _text("run_id"),
        _text("subject"),
        _text("subject_id"),
        _flag("right"),
        _text("by"),
        indexes=(_OF_RUN, ("subject_id",)),
    )
