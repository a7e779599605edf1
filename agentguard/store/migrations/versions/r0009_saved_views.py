"""Migration 0009: saved views of the list of runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Create the table; other tables remain unchanged."""
    op.create_table(
        "agentguard_saved_views",
        sa.Column("tenant", sa.Text, nullable=False, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, primary_key=True),
        sa.Column("query", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
