"""Storage of runs, findings, diagnoses, schemata and recoveries: SQLite by default, PostgreSQL by URL.

::

    from agentguard.store import Store, VerdictRow

    with Store.open() as store:                      # .agentguard/store.db
        receipt = store.write(VerdictRow(...))       # returns at once and never raises
        receipt.wait(5.0)                            # durable now

The row types need nothing but Python; `Store` needs the extra ``store``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.store.store import Store as Store

_EXPORTS = {"Store": "agentguard.store.store"}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, extra="store")
