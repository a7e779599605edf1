"""Diagnoses as rows of the store."""

from __future__ import annotations

from agentguard.detect.keep import finding_rows
from agentguard.localize.base import Diagnosis
from agentguard.localize.codec import encode_diagnosis
from agentguard.store.rows import DiagnosisRow, Row


def diagnosis_rows(diagnosis: Diagnosis, *, tenant: str = "") -> tuple[Row, ...]:
    """Rows of a diagnosis and its findings; the run itself is written apart."""
    first = diagnosis.hypotheses[0] if diagnosis.hypotheses else None
    row = DiagnosisRow(
        tenant=tenant,
        run_id=diagnosis.trajectory_id,
        method=diagnosis.method,
        verdict=diagnosis.verdict.value,
        probability=diagnosis.probability,
        step=first.step if first else None,
        agent=first.agent if first else "",
        module=(first.module or "") if first else "",
        code=first.codes[0] if first and first.codes else "",
        data=encode_diagnosis(diagnosis),
    )
    return (row, *finding_rows(diagnosis.trajectory_id, diagnosis.findings, tenant=tenant))
