"""Migration 0013: probability of the first hypothesis in run summaries.

`agentguard.store.read.summary_queries.refresh_summaries` adds the values of existing runs later.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

_TABLE = "agentguard_overviews"


def upgrade() -> None:
    """Add the column, and mark all summaries as incomplete."""
    op.add_column(_TABLE, sa.Column("step_probability", sa.Double, nullable=True))
    op.execute(sa.update(sa.table(_TABLE, sa.column("stale"))).values(stale=sa.true()))
