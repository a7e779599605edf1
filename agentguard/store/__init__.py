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
    from agentguard.store.db.rows import (
        AcceptanceRow as AcceptanceRow,
        BranchRow as BranchRow,
        DiagnosisRow as DiagnosisRow,
        EffectRow as EffectRow,
        FindingRow as FindingRow,
        HealthHintRow as HealthHintRow,
        IssueRow as IssueRow,
        JudgementRow as JudgementRow,
        RecoveryRow as RecoveryRow,
        RunRow as RunRow,
        SavedViewRow as SavedViewRow,
        SchemaRow as SchemaRow,
        SessionRow as SessionRow,
        SnapshotRow as SnapshotRow,
        StepRow as StepRow,
        VerdictRow as VerdictRow,
        compute_verdict_key as compute_verdict_key,
    )
    from agentguard.store.db.run_summary import (
        RunFacets as RunFacets,
        RunSort as RunSort,
        RunSummaryFilter as RunSummaryFilter,
        RunSummaryRow as RunSummaryRow,
        VerdictFilter as VerdictFilter,
    )
    from agentguard.store.options import StoreOptions as StoreOptions
    from agentguard.store.read.pagination import (
        Page as Page,
        ResultPage as ResultPage,
        RunFilter as RunFilter,
    )
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
