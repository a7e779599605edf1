"""Migration 0007: issues, which gather recurring failures."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Create the table; other tables remain unchanged."""
    op.create_table(
        "agentguard_issues",
        sa.Column("tenant", sa.Text, nullable=False, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, primary_key=True),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("code", sa.Text, nullable=False),
        sa.Column("module", sa.Text, nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("resolved_at", sa.Double, nullable=True),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
