"""Migration 0008: removal of the table of backend events, which nothing wrote."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0006"


def upgrade() -> None:
    """Drop the table; metrics and spans hold the events of backends."""
    op.drop_table("agentguard_backend_events")
