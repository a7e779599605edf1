"""Migration 0006: spending of keys and tenants of the proxy, for their budgets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_TABLE = "agentguard_spending"


def upgrade() -> None:
    """Create the table unless it exists; other tables remain unchanged.

    Before this version, the first proxy with a budget created the table. Its amounts are kept.
    """
    if sa.inspect(op.get_bind()).has_table(_TABLE):
        return
    op.create_table(
        _TABLE,
        sa.Column("subject", sa.String(200), nullable=False, primary_key=True),
        sa.Column("period", sa.String(10), nullable=False, primary_key=True),
        sa.Column("usd", sa.Double, nullable=False),
    )
