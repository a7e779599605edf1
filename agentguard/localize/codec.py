"""Diagnoses as JSON data and back; what the store keeps and what ``diagnose --json`` prints."""

from __future__ import annotations

from typing import Any

from agentguard.detect.codec import as_data, decode_evidence, decode_failure, decode_finding, texts
from agentguard.localize.base import Diagnosis, Hypothesis, Verdict
from agentguard.trajectory.formats._fields import Node


def encode_diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    """A diagnosis as JSON data, every field of it."""
    return as_data(diagnosis)


def decode_diagnosis(node: Node) -> Diagnosis:
    """A diagnosis from JSON data. Raises FormatError that names the field."""
    verdict = node.text("verdict")
    if verdict not in set(Verdict):
        raise node.error("verdict", f"expected one of {', '.join(Verdict)}")
    timing, usage = node.node_or("timing"), node.node_or("usage")
    recalibrated = node.node_or("recalibrated")
    return Diagnosis(
        trajectory_id=node.text("trajectory_id"),
        method=node.text("method"),
        verdict=Verdict(verdict),
        probability=node.number("probability"),
        hypotheses=tuple(_hypothesis(one) for one in node.nodes_or("hypotheses")),
        findings=tuple(decode_finding(one) for one in node.nodes_or("findings")),
        failures=tuple(decode_failure(one) for one in node.nodes_or("failures")),
        timing={part: timing.number(part) for part in timing.data},
        usage={part: usage.number(part) for part in usage.data},
        notes=texts(node, "notes"),
        recalibrated={part: recalibrated.number(part) for part in recalibrated.data},
    )


def _hypothesis(node: Node) -> Hypothesis:
    return Hypothesis(
        step=node.integer("step"),
        agent=node.text("agent"),
        module=node.text("module") if "module" in node else None,
        codes=texts(node, "codes"),
        probability=node.number("probability"),
        evidence=tuple(decode_evidence(one) for one in node.nodes_or("evidence")),
        correction=node.text_or("correction"),
        reason=node.text_or("reason"),
        schemata=texts(node, "schemata"),
    )
