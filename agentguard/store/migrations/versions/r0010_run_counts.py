"""Migration 0010: numbers of runs by value and day.

`agentguard.store.read.summary_queries.refresh_summaries` counts the existing runs after the migration.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Create the table; other tables remain unchanged."""
    op.create_table(
        "agentguard_run_counts",
        sa.Column("tenant", sa.Text, nullable=False, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False, primary_key=True),
        sa.Column("day", sa.BigInteger, nullable=False, primary_key=True, autoincrement=False),
        sa.Column("name", sa.Text, nullable=False, primary_key=True),
        sa.Column("runs", sa.BigInteger, nullable=False),
    )
