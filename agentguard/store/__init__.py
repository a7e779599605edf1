"""Where runs, and what was learnt from them, are kept: SQLite by default, PostgreSQL by URL.

::

    from agentguard.store import Store
    from agentguard.store.db.rows import VerdictRow

    with Store.open() as store:                      # .agentguard/store.db
        receipt = store.write(VerdictRow(...))       # never waits for the disk, never raises
        receipt.wait(5.0)                            # durable now

Rows (`agentguard.store.db.rows`) need nothing but Python; `Store` needs the extra ``store``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentguard.errors import MissingExtra

if TYPE_CHECKING:
    from agentguard.store.store import Store

__all__ = ["Store"]


def __getattr__(name: str) -> Any:
    if name != "Store":
        raise AttributeError(f"module 'agentguard.store' has no attribute {name!r}")
    try:
        return import_module("agentguard.store.store").Store
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package in {"sqlalchemy", "alembic"}:
            raise MissingExtra(package, "store") from None
        raise
