"""Migration 0011: words of runs for the search in their contents.

All existing runs are not indexed yet; `agentguard.store.write.search_index` adds them after the migration.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TSVECTOR

revision = "0011"
down_revision = "0010"

_SUMMARIES = "agentguard_overviews"
_DOCUMENTS = "agentguard_search_documents"


def upgrade() -> None:
    """Create the table of words, and add the mark of indexed runs to their summaries."""
    op.create_table(
        _DOCUMENTS,
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("words", sa.Text().with_variant(TSVECTOR, "postgresql"), nullable=False),
    )
    op.create_index(f"{_DOCUMENTS}_run_id", _DOCUMENTS, ["tenant", "run_id"], unique=True)
    op.add_column(_SUMMARIES, sa.Column("indexed", sa.Boolean, nullable=False, server_default=sa.false()))
    is_unindexed = sa.and_(sa.column("known", sa.Boolean), sa.not_(sa.column("indexed", sa.Boolean)))
    op.create_index(
        f"{_SUMMARIES}_unindexed",
        _SUMMARIES,
        ["tenant", "updated_at"],
        sqlite_where=is_unindexed,
        postgresql_where=is_unindexed,
    )
