"""Conversion of diagnoses to JSON data and back, for the store and ``diagnose --json``."""

from __future__ import annotations

from typing import Any

from agentguard.detect.finding_rows import build_finding_rows
from agentguard.detect.serialization import to_json_data
from agentguard.localize.base import Diagnosis
from agentguard.store.db.rows import DiagnosisRow, Row
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.serialization import decode_dataclass


def encode_diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    """Convert a diagnosis with all its fields to JSON data."""
    return to_json_data(diagnosis)


def decode_diagnosis(node: JsonNode) -> Diagnosis:
    """Convert JSON data to a diagnosis. Raises FormatError that names the field."""
    diagnosis = decode_dataclass(Diagnosis, node)
    for one in node.nodes_or("hypotheses"):
        one.number("probability")  # the class has a default, a stored hypothesis needs a value
    return diagnosis


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
