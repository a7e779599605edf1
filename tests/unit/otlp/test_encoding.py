"""Our protobuf encoder against the library's."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given, settings, strategies as st
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces

from agentguard.otlp import encoding
from agentguard.otlp.encoding import encode_message
from agentguard.otlp.model import OtlpSpan, SpanEvent

IDS = ("traceId", "spanId", "parentSpanId")
REQUESTS: dict[str, Any] = {
    "traces": traces.ExportTraceServiceRequest,
    "logs": logs.ExportLogsServiceRequest,
}

ids = st.binary(min_size=8, max_size=8).filter(any).map(bytes.hex)
numbers = st.integers(min_value=-(2**70), max_value=2**70) | st.floats()
values = st.text(max_size=20) | st.booleans() | numbers | st.lists(st.text(max_size=5), max_size=3).map(tuple)
attributes = st.dictionaries(st.text(max_size=10), values, max_size=5)
times = st.integers(min_value=0, max_value=2**63 - 1)
events = st.builds(SpanEvent, name=st.text(max_size=10), at_ns=times, attributes=attributes)
spans = st.builds(
    OtlpSpan,
    trace_id=st.binary(min_size=16, max_size=16).filter(any).map(bytes.hex),
    span_id=ids,
    parent_id=st.none() | ids,
    name=st.text(max_size=20),
    start_ns=times,
    end_ns=times,
    attributes=attributes,
    events=st.lists(events, max_size=3),
    error=st.none() | st.booleans(),
    message=st.text(max_size=10),
    kind=st.sampled_from(["internal", "server", "client"]),
)


def with_base64(value: Any) -> Any:
    """Return ids in base64, as protobuf's own JSON mapping writes bytes."""
    if isinstance(value, list):
        return [with_base64(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: base64.b64encode(bytes.fromhex(held)).decode() if name in IDS else with_base64(held)
        for name, held in value.items()
    }


@settings(max_examples=150, deadline=None)
@given(st.lists(spans, max_size=3), st.sampled_from(["traces", "logs"]))
def test_encoding_equals_that_of_the_library(made: list[OtlpSpan], signal: Any) -> None:
    records = [encoding.build_span_data(one) for one in made]
    if signal == "logs":
        records = [record for one in made for record in encoding.build_log_records(one)]
    data = encoding.build_request_data(signal, records, service="é")
    found = REQUESTS[signal].FromString(encoding.encode_request(signal, data, "protobuf"))
    assert found == ParseDict(with_base64(data), REQUESTS[signal]())


def test_unknown_field_is_rejected() -> None:
    with pytest.raises(KeyError):
        encode_message({}, {"x": 1})
