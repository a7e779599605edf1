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
    from agentguard.store.db.rows import AcceptanceRow as AcceptanceRow
    from agentguard.store.db.rows import BranchRow as BranchRow
    from agentguard.store.db.rows import DiagnosisRow as DiagnosisRow
    from agentguard.store.db.rows import EffectRow as EffectRow
    from agentguard.store.db.rows import FindingRow as FindingRow
    from agentguard.store.db.rows import HealthHintRow as HealthHintRow
    from agentguard.store.db.rows import IssueRow as IssueRow
    from agentguard.store.db.rows import JudgementRow as JudgementRow
    from agentguard.store.db.rows import RecoveryRow as RecoveryRow
    from agentguard.store.db.rows import RunRow as RunRow
    from agentguard.store.db.rows import SavedViewRow as SavedViewRow
    from agentguard.store.db.rows import SchemaRow as SchemaRow
    from agentguard.store.db.rows import SessionRow as SessionRow
    from agentguard.store.db.rows import SnapshotRow as SnapshotRow
    from agentguard.store.db.rows import StepRow as StepRow
    from agentguard.store.db.rows import VerdictRow as VerdictRow
    from agentguard.store.db.rows import compute_verdict_key as compute_verdict_key
    from agentguard.store.db.run_summary import RunFacets as RunFacets
    from agentguard.store.db.run_summary import RunSort as RunSort
    from agentguard.store.db.run_summary import RunSummaryFilter as RunSummaryFilter
    from agentguard.store.db.run_summary import RunSummaryRow as RunSummaryRow
    from agentguard.store.db.run_summary import VerdictFilter as VerdictFilter
    from agentguard.store.options import StoreOptions as StoreOptions
    from agentguard.store.read.pagination import Page as Page
    from agentguard.store.read.pagination import ResultPage as ResultPage
    from agentguard.store.read.pagination import RunFilter as RunFilter
    from agentguard.store.store import Store as Store

_EXPORTS = {
    "AcceptanceRow": "agentguard.store.db.rows",
    "BranchRow": "agentguard.store.db.rows",
    "DiagnosisRow": "agentguard.store.db.rows",
    "EffectRow": "agentguard.store.db.rows",
    "FindingRow": "agentguard.store.db.rows",
    "HealthHintRow": "agentguard.store.db.rows",
    "IssueRow": "agentguard.store.db.rows",
    "JudgementRow": "agentguard.store.db.rows",
    "Page": "agentguard.store.read.pagination",
    "RecoveryRow": "agentguard.store.db.rows",
    "ResultPage": "agentguard.store.read.pagination",
    "RunFacets": "agentguard.store.db.run_summary",
    "RunFilter": "agentguard.store.read.pagination",
    "RunRow": "agentguard.store.db.rows",
    "RunSort": "agentguard.store.db.run_summary",
    "RunSummaryFilter": "agentguard.store.db.run_summary",
    "RunSummaryRow": "agentguard.store.db.run_summary",
    "SavedViewRow": "agentguard.store.db.rows",
    "SchemaRow": "agentguard.store.db.rows",
    "SessionRow": "agentguard.store.db.rows",
    "SnapshotRow": "agentguard.store.db.rows",
    "StepRow": "agentguard.store.db.rows",
    "Store": "agentguard.store.store",
    "StoreOptions": "agentguard.store.options",
    "VerdictFilter": "agentguard.store.db.run_summary",
    "VerdictRow": "agentguard.store.db.rows",
    "compute_verdict_key": "agentguard.store.db.rows",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, extra="store")
