"""Conversion of a run, stored or in memory, into spans for export."""

from __future__ import annotations

from agentguard.errors import FormatError
from agentguard.localize.serialization import decode_diagnosis
from agentguard.otlp.evaluation_events import RunAssessment, with_evaluation_events
from agentguard.otlp.model import OtlpSpan
from agentguard.otlp.span_builder import build_spans
from agentguard.store.store import Store
from agentguard.trajectory.formats.sdk import JsonNode
from agentguard.trajectory.model import Trajectory


def build_assessed_spans(
    run: Trajectory,
    assessment: RunAssessment | None = None,
    *,
    content: bool = True,
    at_s: float | None = None,
) -> tuple[OtlpSpan, ...]:
    """Return the spans of a run with its assessment; ``at_s`` as in `otlp.span_builder.build_spans`."""
    return with_evaluation_events(
        build_spans(run, include_content=content, at_s=at_s),
        assessment or RunAssessment(),
        include_content=content,
    )


def load_stored_spans(
    store: Store, run_id: str, *, tenant: str = "", content: bool = True
) -> tuple[OtlpSpan, ...] | None:
    """Return the spans of a stored run with its latest diagnosis and all recoveries; None if it is missing.

    Raises:
        FormatError: the stored rows are not a valid run or diagnosis.
        StoreUnavailable: the database cannot be read now.
    """
    row, run = store.get_run(run_id, tenant=tenant), store.get_trajectory(run_id, tenant=tenant)
    if row is None or run is None:
        return None
    rows = store.list_diagnoses(run_id, tenant=tenant)
    try:
        diagnosis = decode_diagnosis(JsonNode.from_value(dict(rows[-1].data))) if rows else None
    except FormatError as error:
        raise error.with_location(file=f"stored run {run_id}") from None
    assessment = RunAssessment(
        diagnosis=diagnosis,
        findings=diagnosis.findings if diagnosis else (),
        recoveries=store.list_recoveries(run_id, tenant=tenant),
    )
    return build_assessed_spans(run, assessment, content=content, at_s=row.created_at)
