"""Findings as JSON data and back, for the store and for ``diagnose --json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import orjson

from agentguard.detect.base import Finding
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.serialization import decode_dataclass


def encode_finding(finding: Finding) -> dict[str, Any]:
    """Return a finding as JSON data with all fields; parts of ``data`` that are not JSON become text."""
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
    """Decode a finding from JSON data. Raises FormatError with the name of the invalid field."""
    return decode_dataclass(Finding, node)
