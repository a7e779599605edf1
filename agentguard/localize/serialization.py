"""Conversion of diagnoses to JSON data and back, for the store and ``diagnose --json``."""

from __future__ import annotations

from typing import Any

from agentguard.detect.persistence import build_finding_rows
from agentguard.detect.serialization import (
    decode_evidence,
    decode_failure,
    decode_finding,
    decode_texts,
    to_json_data,
)
from agentguard.localize.base import Diagnosis, Hypothesis, Verdict
from agentguard.store.db.rows import DiagnosisRow, Row
from agentguard.trajectory._json_node import JsonNode


def encode_diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    """Convert a diagnosis with all its fields to JSON data."""
    return to_json_data(diagnosis)


def decode_diagnosis(node: JsonNode) -> Diagnosis:
    """Convert JSON data to a diagnosis. Raises FormatError that names the field."""
    verdict = node.text("verdict")
    if verdict not in set(Verdict):
        raise node.build_error("verdict", f"expected one of {', '.join(Verdict)}")
    timing, usage = node.node_or("timing"), node.node_or("usage")
    recalibrated = node.node_or("recalibrated")
    return Diagnosis(
        trajectory_id=node.text("trajectory_id"),
        method=node.text("method"),
        verdict=Verdict(verdict),
        probability=node.number("probability"),
        hypotheses=tuple(_decode_hypothesis(one) for one in node.nodes_or("hypotheses")),
        findings=tuple(decode_finding(one) for one in node.nodes_or("findings")),
        failures=tuple(decode_failure(one) for one in node.nodes_or("failures")),
        timing={part: timing.number(part) for part in timing.data},
        usage={part: usage.number(part) for part in usage.data},
        notes=decode_texts(node, "notes"),
        recalibrated={part: recalibrated.number(part) for part in recalibrated.data},
    )


def _decode_hypothesis(node: JsonNode) -> Hypothesis:
    return Hypothesis(
        step=node.integer("step"),
        agent=node.text("agent"),
        module=node.text("module") if "module" in node else None,
        codes=decode_texts(node, "codes"),
        probability=node.number("probability"),
        evidence=tuple(decode_evidence(one) for one in node.nodes_or("evidence")),
        correction=node.text_or("correction"),
        reason=node.text_or("reason"),
        schemata=decode_texts(node, "schemata"),
    )


def build_diagnosis_rows(diagnosis: Diagnosis, *, tenant: str = "") -> tuple[Row, ...]:
    """Build the rows of a diagnosis and its findings; the run itself is written separately."""
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
    return (row, *build_finding_rows(diagnosis.trajectory_id, diagnosis.findings, tenant=tenant))
