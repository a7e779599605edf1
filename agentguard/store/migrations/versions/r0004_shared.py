"""Migration 0004: state that proxies share, namely sessions and health hints."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Create both tables; other tables remain unchanged."""
    _table(
        "sessions",
        sa.Column("key", sa.Text, nullable=False, primary_key=True),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
    )
    _table(
        "hints",
        sa.Column("machine", sa.Text, nullable=False, primary_key=True),
        sa.Column("backend", sa.Text, nullable=False, primary_key=True),
        sa.Column("trouble", sa.Text, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
    )
    for name, column in (("sessions", "run_id"), ("sessions", "updated_at"), ("hints", "updated_at")):
        op.create_index(f"agentguard_{name}_{column}", f"agentguard_{name}", ["tenant", column])


def _table(name: str, *columns: sa.Column[object]) -> None:
    op.create_table(
        f"agentguard_{name}",
        sa.Column("tenant", sa.Text, nullable=False, primary_key=True),
        *columns,
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
