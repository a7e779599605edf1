"""Spans of a run, stored or in memory, with its assessment and its recoveries.

The assessment consists of ``gen_ai.evaluation.result`` events. The verdict is an event of the run's span; a
hypothesis or a finding is an event of its step's span. Each recovery is a span of OpenInference's kind
GUARDRAIL with its outcome as an event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from agentguard.detect.base import Finding
from agentguard.errors import FormatError
from agentguard.localize.base import Diagnosis
from agentguard.localize.serialization import decode_diagnosis
from agentguard.otlp.model import EVALUATION_EVENT, AttributeValue, OtlpSpan, SpanEvent, build_span_id
from agentguard.otlp.span_builder import RunSpans, build_spans, to_nanoseconds
from agentguard.store.db.rows import RecoveryRow
from agentguard.store.store import Store
from agentguard.trajectory.formats.sdk import JsonNode
from agentguard.trajectory.model import Trajectory

_OUTCOME_SCORES: Final[Mapping[str, float]] = {"recovered": 1.0, "failed": 0.0}
_CURRENT_BRANCH: Final = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAssessment:
    """Diagnosis, findings and recoveries of a run."""

    diagnosis: Diagnosis | None = None
    findings: Sequence[Finding] = ()
    recoveries: Sequence[RecoveryRow] = ()


def build_assessed_spans(
    run: Trajectory,
    assessment: RunAssessment | None = None,
    *,
    include_content: bool = True,
    at_s: float | None = None,
) -> tuple[OtlpSpan, ...]:
    """Return the spans of a run with its evaluation events, then the spans of its recoveries.

    Args:
        run: the run.
        assessment: diagnosis, findings and recoveries of the run; None for the spans of the run alone.
        include_content: include the contents of the run, and texts of the assessment that may quote it.
        at_s: start of a run whose steps have no times, in epoch seconds; the default is now.
    """
    return _add_evaluation_events(
        build_spans(run, include_content=include_content, at_s=at_s),
        assessment or RunAssessment(),
        include_content=include_content,
    )


def load_stored_spans(
    store: Store, run_id: str, *, tenant: str = "", include_content: bool = True
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
    return build_assessed_spans(run, assessment, include_content=include_content, at_s=row.created_at)


def _add_evaluation_events(
    run_spans: RunSpans, assessment: RunAssessment, *, include_content: bool
) -> tuple[OtlpSpan, ...]:
    root = run_spans.spans[0]
    events: dict[str, list[SpanEvent]] = {}
    for span_id, event in _build_events(run_spans, assessment, include_content):
        events.setdefault(span_id, []).append(event)
    spans = (replace(one, events=tuple(events.get(one.span_id, ()))) for one in run_spans.spans)
    return (*spans, *(_build_recovery_span(row, root, include_content) for row in assessment.recoveries))


def _build_events(
    run_spans: RunSpans, assessment: RunAssessment, include_content: bool
) -> Iterator[tuple[str, SpanEvent]]:
    root = run_spans.spans[0]
    ends = {span.span_id: span.end_ns for span in run_spans.spans}
    if assessment.diagnosis is not None:
        diagnosis = assessment.diagnosis
        yield root.span_id, _build_event(
            root.end_ns, "agentguard.verdict", diagnosis.verdict.value, diagnosis.probability,
            " ".join(diagnosis.notes) if include_content else "", {"agentguard.method": diagnosis.method},
        )  # fmt: skip
        for rank, hypothesis in enumerate(diagnosis.hypotheses):
            span_id = run_spans.span_id_by_step.get((_CURRENT_BRANCH, hypothesis.step), root.span_id)
            yield span_id, _build_event(
                ends[span_id], "agentguard.root_cause",
                hypothesis.codes[0] if hypothesis.codes else "root cause",
                hypothesis.probability, hypothesis.reason if include_content else "",
                {"agentguard.rank": rank, "agentguard.module": hypothesis.module or ""},
            )  # fmt: skip
    for finding in assessment.findings:
        span_id = run_spans.span_id_by_step.get((_CURRENT_BRANCH, finding.step), root.span_id)
        yield span_id, _build_event(
            ends[span_id], f"agentguard.{finding.detector}", finding.codes[0] if finding.codes else "finding",
            finding.probability, finding.message if include_content else "",
            {"agentguard.detector": finding.detector},
        )  # fmt: skip


def _build_event(
    at: int, name: str, label: str, score: float | None, explanation: str, more: Mapping[str, AttributeValue]
) -> SpanEvent:
    attributes: dict[str, AttributeValue] = {
        "gen_ai.evaluation.name": name,
        "gen_ai.evaluation.score.label": label,
        **{key: value for key, value in more.items() if value != ""},
    }
    if score is not None:
        attributes["gen_ai.evaluation.score.value"] = float(score)
    if explanation:
        attributes["gen_ai.evaluation.explanation"] = explanation
    return SpanEvent(name=EVALUATION_EVENT, at_ns=at, attributes=attributes)


def _build_recovery_span(row: RecoveryRow, root: OtlpSpan, include_content: bool) -> OtlpSpan:
    node = JsonNode(dict(row.data))
    plan = _as_mapping(node.raw("plan"))
    start = min(max(to_nanoseconds(row.created_at), root.start_ns), root.end_ns)
    end = max(start, min(to_nanoseconds(row.updated_at or row.created_at), root.end_ns))
    attributes: dict[str, AttributeValue] = {
        "openinference.span.kind": "GUARDRAIL",
        "agentguard.recovery.strategy": row.strategy,
        "agentguard.recovery.outcome": row.outcome,
    }
    if row.step is not None:
        attributes["agentguard.recovery.step"] = row.step
    for name in ("tier", "undone"):
        if isinstance(value := plan.get(name), str | int):
            attributes[f"agentguard.recovery.{name}"] = value
    for name in ("trigger", "at_step"):
        if isinstance(value := node.raw(name), str | int):
            attributes[f"agentguard.recovery.{name}"] = value
    reason = plan.get("reason")
    if include_content and isinstance(reason, str) and reason:
        attributes["input.value"] = reason
    if include_content and (guard_text := _extract_guard_text(plan)):
        attributes["output.value"] = guard_text
    explanation = reason if include_content and isinstance(reason, str) else ""
    score = _OUTCOME_SCORES.get(row.outcome)
    return OtlpSpan(
        trace_id=root.trace_id,
        span_id=build_span_id(root.trace_id, "recovery", row.id),
        parent_id=root.span_id,
        name=f"guardrail {row.strategy}",
        start_ns=start,
        end_ns=end,
        attributes=attributes,
        events=(_build_event(end, "agentguard.recovery", row.outcome, score, explanation, {}),),
    )


def _as_mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _extract_guard_text(plan: Mapping[str, object]) -> str:
    """Return the guard's messages to the agent in a plan."""
    actions = plan.get("actions")
    parts = (_as_mapping(one) for one in actions) if isinstance(actions, list | tuple) else ()
    texts = (one.get("text") or one.get("note") for one in parts)
    return "\n".join(text for text in texts if isinstance(text, str))
