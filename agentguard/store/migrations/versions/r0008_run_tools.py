"""Migration 0008: agents and tools in run summaries; removal of the table of backend events.

Only agentguard can decode steps: `agentguard.store.read.summary_queries.refresh_summaries` adds the values of
existing runs after the migration. Nothing wrote backend events; metrics and spans hold them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

_TABLE = "agentguard_overviews"


def upgrade() -> None:
    """Drop the unused table, add the columns, and mark all summaries as incomplete."""
    op.drop_table("agentguard_backend_events")
    for name in ("agents", "tools"):
        op.add_column(_TABLE, sa.Column(name, sa.Text, nullable=False, server_default=""))
    op.execute(sa.update(sa.table(_TABLE, sa.column("stale"))).values(stale=sa.true()))
