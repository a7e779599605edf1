"""Migration 0005: attempts and results of acceptance tests."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_TABLE = "agentguard_acceptances"


def upgrade() -> None:
    """Create the table; other tables remain unchanged."""
    op.create_table(
        _TABLE,
        sa.Column("tenant", sa.Text, nullable=False, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, primary_key=True),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("attempt", sa.BigInteger, nullable=False),
        sa.Column("accepted", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_index(f"{_TABLE}_run_id_created_at_id", _TABLE, ["tenant", "run_id", "created_at", "id"])
    op.create_index(f"{_TABLE}_created_at_id", _TABLE, ["tenant", "created_at", "id"])
