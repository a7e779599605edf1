"""Migration 0012: verdicts by the names that reports show.

``failure`` becomes ``failed``, ``no_failure`` becomes ``no_failure_found``, and ``abstained`` becomes
``undecided``. `agentguard.verdict` reads the earlier names in the data of diagnoses, which remains unchanged.
"""

from __future__ import annotations

import json
import re

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

_NAMES = {
    "failure": "failed",
    "no_failure": "no_failure_found",
    "abstained": "undecided",
    "none": "not_diagnosed",
}
_PARAMETER = re.compile(rf"(?<![^&?])verdict=({'|'.join(_NAMES)})(?![^&])")


def upgrade() -> None:
    """Rename the verdicts of diagnoses, run summaries and counts, and those in the queries of saved views."""
    stored = {name: _NAMES[name] for name in ("failure", "no_failure", "abstained")}
    for table, column in (("diagnoses", "verdict"), ("overviews", "verdict"), ("run_counts", "name")):
        target = sa.table(f"agentguard_{table}", sa.column(column), sa.column("kind"))
        value = target.c[column]
        rename = sa.update(target).where(value.in_(stored)).values({column: sa.case(stored, value=value)})
        op.execute(rename.where(target.c.kind == "verdict") if table == "run_counts" else rename)
    _rename_in_saved_views(op.get_bind())


def _rename_in_saved_views(connection: sa.Connection) -> None:
    """Rename the verdicts in the queries; the payload has the original of a query that the column cuts."""
    names = ("tenant", "name", "query")
    views = sa.table("agentguard_saved_views", *map(sa.column, names), sa.column("data", sa.LargeBinary))
    for tenant, name, query, payload in connection.execute(sa.select(views)).all():
        changed: dict[str, str | bytes] = {"query": _rename(query)}
        if payload.startswith(b"["):
            data, originals = json.loads(payload)
            originals = {key: _rename(text) for key, text in originals.items()}
            changed["data"] = json.dumps([data, originals]).encode()
        key = (views.c.tenant == tenant, views.c.name == name)
        connection.execute(sa.update(views).where(*key).values(changed))


def _rename(query: str) -> str:
    return _PARAMETER.sub(lambda match: f"verdict={_NAMES[match[1]]}", query)
