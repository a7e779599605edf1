"""Spans before their encoding, with ids that are equal in each export of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

AttributeValue = str | bool | int | float | tuple[str, ...]
SpanKind = Literal["internal", "server", "client"]
Attributes = Mapping[str, AttributeValue]

EVALUATION_EVENT: Final = "gen_ai.evaluation.result"
"""Name of the evaluation event (OpenTelemetry's GenAI conventions, Development)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanEvent:
    """Event of a span; ``at_ns`` is in nanoseconds since 1970."""

    name: str
    at_ns: int
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpSpan:
    """Span before its encoding.

    Attributes:
        trace_id, span_id, parent_id: lower-case hexadecimal.
        start_ns, end_ns: nanoseconds since 1970.
        error: True or False for a status of error or OK; None for an unset status.
        message: message of an error status.
    """

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    start_ns: int
    end_ns: int
    attributes: Attributes = field(default_factory=dict)
    events: Sequence[SpanEvent] = ()
    error: bool | None = None
    message: str = ""
    kind: SpanKind = "internal"


def build_trace_id(run_id: str) -> str:
    """Return the trace id of a run; it is stable, so that a repeated export is the same trace."""
    return _hash_to_hex("trace", run_id, size=16)


def build_span_id(trace_id: str, *parts: object) -> str:
    """Return the span id of a part of a trace."""
    return _hash_to_hex("span", trace_id, *map(str, parts), size=8)


def _hash_to_hex(*parts: str, size: int) -> str:
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(text).hexdigest()[: 2 * size]
    # The protocol uses all zeros for a missing id.
    return digest if digest.strip("0") else digest[:-1] + "1"
