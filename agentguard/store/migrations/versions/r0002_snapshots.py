"""Migration 0002: snapshots of the environment of a run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the table; other tables remain unchanged."""
    op.create_table(
        "agentguard_snapshots",
        sa.Column("tenant", sa.Text, nullable=False, primary_key=True),
        sa.Column("run_id", sa.Text, nullable=False, primary_key=True),
        sa.Column("step", sa.BigInteger, nullable=False, primary_key=True, autoincrement=False),
        sa.Column("state", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
