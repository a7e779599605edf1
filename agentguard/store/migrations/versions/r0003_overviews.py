"""Migration 0003: run summaries.

Each existing run gets a summary from its own row. The rest comes from its steps and diagnoses, which only
agentguard can decode: `agentguard.store.read.summary_queries.refresh_summaries` adds it after the migration.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_TABLE = "agentguard_overviews"
_TEXTS = (
    "models", "tags", "verdict", "method", "agent", "module", "code", "recovered", "judged",
)  # fmt: skip


def upgrade() -> None:
    """Create the table and a summary for each run; other tables remain unchanged."""
    op.create_table(
        _TABLE,
        sa.Column("tenant", sa.Text, nullable=False, primary_key=True),
        sa.Column("run_id", sa.Text, nullable=False, primary_key=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("task", "format")),
        sa.Column("failed", sa.Boolean, nullable=True),
        sa.Column("began_at", sa.Double, nullable=False),
        *(sa.Column(name, sa.Double, nullable=True) for name in ("started_at", "ended_at", "duration_s")),
        sa.Column("steps", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=True),
        sa.Column("cost_usd", sa.Double, nullable=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("models", "tags", "verdict")),
        sa.Column("probability", sa.Double, nullable=True),
        sa.Column("method", sa.Text, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("agent", "module", "code")),
        *(sa.Column(name, sa.Double, nullable=True) for name in ("diagnosed_at", "guard_s")),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("findings", "recoveries")),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("recovered", "judged")),
        *(sa.Column(name, sa.Boolean, nullable=False) for name in ("known", "stale")),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_index(f"{_TABLE}_began_at_run_id", _TABLE, ["tenant", "began_at", "run_id"])
    op.create_index(f"{_TABLE}_updated_at", _TABLE, ["tenant", "updated_at"])
    _fill()


def _fill() -> None:
    name = sa.column
    runs = sa.table(
        "agentguard_runs",
        *map(name, ("tenant", "id", "task", "format", "failed", "created_at", "length")),
    )
    values = {
        "tenant": runs.c.tenant,
        "run_id": runs.c.id,
        "task": runs.c.task,
        "format": runs.c.format,
        "failed": runs.c.failed,
        "began_at": runs.c.created_at,
        "steps": runs.c.length,
        **{text: sa.literal("") for text in _TEXTS},
        "findings": sa.literal(0),
        "recoveries": sa.literal(0),
        "known": sa.true(),
        "stale": sa.true(),
        "updated_at": runs.c.created_at,
        "created_at": runs.c.created_at,
        "data": sa.literal(b"{}", sa.LargeBinary),
    }
    target = sa.table(_TABLE, *map(name, values))
    op.execute(target.insert().from_select(list(values), sa.select(*values.values()).select_from(runs)))
