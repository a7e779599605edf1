"""Findings as JSON data and back, for the store and for ``diagnose --json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import orjson

from agentguard.detect.base import DetectorFailure, Evidence, Finding
from agentguard.trajectory._json_node import JsonNode


def encode_finding(finding: Finding) -> dict[str, Any]:
    """Return a finding as JSON data with all its fields; parts of ``data`` that are not JSON become text."""
    return to_json_data(finding)


def to_json_data(value: Any) -> dict[str, Any]:
    """Return a dataclass as JSON data with all fields at all depths; values that are not JSON become text."""
    data: dict[str, Any]
    try:
        data = orjson.loads(orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS))
    except TypeError:  # half of a surrogate pair, which a quote may contain, or a number beyond 64 bits
        data = json.loads(json.dumps(asdict(value), default=_to_plain))
    return data


def _to_plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)


def decode_finding(node: JsonNode) -> Finding:
    """Decode a finding from JSON data. Raises FormatError that names the field."""
    return Finding(
        detector=node.text("detector"),
        step=node.integer("step"),
        codes=decode_texts(node, "codes"),
        probability=node.number("probability"),
        message=node.text("message"),
        evidence=tuple(decode_evidence(one) for one in node.nodes_or("evidence")),
        correction=node.text_or("correction"),
        noticed_at=node.integer_or("noticed_at"),
        data=node.node_or("data").data,
    )


def decode_evidence(node: JsonNode) -> Evidence:
    """Decode a quote from JSON data. Raises FormatError that names the field."""
    return Evidence(
        step=node.integer("step"),
        field=node.text("field"),
        quote=node.text("quote"),
        start=node.integer("start"),
        end=node.integer("end"),
    )


def decode_failure(node: JsonNode) -> DetectorFailure:
    """Decode a failure of a detector from JSON data. Raises FormatError that names the field."""
    return DetectorFailure(
        detector=node.text("detector"),
        step=node.integer_or("step"),
        error=node.text("error"),
        seconds=node.number_or("seconds") or 0.0,
    )


def decode_texts(node: JsonNode, key: str) -> tuple[str, ...]:
    """Return a list of texts; empty if the field is absent."""
    for place, value in enumerate(node.items_or(key)):
        if not isinstance(value, str):
            raise node.build_error(f"{key}[{place}]", "expected text")
    return tuple(node.items_or(key))
