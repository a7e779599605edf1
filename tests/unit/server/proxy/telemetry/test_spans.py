"""Spans of requests, in a collector that rejects violations of the protocol."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import pytest
from agentguard_server.proxy.hooks import GuardOutcome
from agentguard_server.proxy.telemetry.options import TracingOptions
from agentguard_server.proxy.telemetry.span_exporter import SpanExporter, to_span
from agentguard_server.proxy.telemetry.trace_context import build_propagation_headers, extract_trace_context
from hypothesis import given, strategies as st
from pydantic import ValidationError

from agentguard.errors import ConfigError
from tests.otlp_receiver import receiving

from .request_builders import recorded

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
KEY = "sk-canary0123456789abcdefCANARY0123456789"
ANSWER = (
    b'{"id":"chatcmpl-1","model":"real-model","choices":[{"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}}'
)


def with_parent(value: str, *more: tuple[bytes, bytes]) -> Any:
    return recorded(headers=((b"traceparent", value.encode()), *more)).request


def test_client_trace_continues_through_proxy_span() -> None:
    asked = with_parent(f"00-{TRACE}-{PARENT}-01", (b"tracestate", b"a=1"), (b"x", b"y"))
    trace = extract_trace_context(asked)
    assert (trace.trace_id, trace.parent_id, trace.is_sampled) == (TRACE, PARENT, True)
    sent = dict(build_propagation_headers(asked))
    assert sent == {b"traceparent": f"00-{TRACE}-{trace.span_id}-01".encode()}
    assert extract_trace_context(asked) == trace


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        f"00-{TRACE}-{PARENT}",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
    ],
)
def test_invalid_traceparent_starts_trace_without_state(value: str) -> None:
    asked = with_parent(value, (b"tracestate", b"a=1"))
    trace = extract_trace_context(asked)
    assert trace.parent_id is None
    assert trace.trace_id != TRACE
    sent = dict(build_propagation_headers(asked))
    assert set(sent) == {b"traceparent", b"tracestate"}
    assert sent[b"tracestate"] == b""


def test_later_traceparent_version_keeps_known_fields() -> None:
    assert extract_trace_context(with_parent(f"01-{TRACE}-{PARENT}-03-more")).parent_id == PARENT


def test_client_sampling_decision_is_kept() -> None:
    request = recorded(headers=((b"traceparent", f"00-{TRACE}-{PARENT}-00".encode()),))
    assert not extract_trace_context(request.request).is_sampled
    assert to_span(request, 10**18, TracingOptions()) is None
    assert build_propagation_headers(request.request)[-1][1].endswith(b"-00")


def test_two_traceparents_are_ignored() -> None:
    header = (b"traceparent", f"00-{TRACE}-{PARENT}-01".encode())
    assert extract_trace_context(recorded(headers=(header, header)).request).parent_id is None


@given(st.text(alphabet="0123456789abcdef", min_size=1, max_size=20), st.floats(0, 1))
def test_sampled_share_has_complete_ids(name: str, share: float) -> None:
    trace = extract_trace_context(recorded(request_id=name).request, share)
    assert len(trace.trace_id) == 32
    assert len(trace.span_id) == 16
    assert extract_trace_context(recorded(request_id=name).request, 1.0).is_sampled
    assert not extract_trace_context(recorded(request_id=name).request, 0.0).is_sampled


def test_sampling_ratio_is_approximated() -> None:
    taken = sum(
        extract_trace_context(recorded(request_id=f"r{number}").request, 0.25).is_sampled
        for number in range(2000)
    )
    assert 400 < taken < 600


def test_span_describes_exchange_without_contents() -> None:
    request = recorded(
        response_body=ANSWER,
        body=b'{"messages":[{"content":"my prompt"}]}',
        notes=(("attempts", "2"),),
        guard_outcome=GuardOutcome(run_id="run-1", step=3, findings=(("exact_loop", 2),)),
        duration_s=2.0,
    )
    span = to_span(request, 10**18, TracingOptions(), findings=["loop.exact"])
    assert span is not None
    assert (span.name, span.kind, span.error) == ("chat m", "client", None)
    assert (span.start_ns, span.end_ns) == (10**18 - 2 * 10**9, 10**18)
    held = span.attributes
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "real-model",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.conversation.id": "run-1",
        "agentguard.note.attempts": "2",
        "http.response.status_code": 200,
    }
    assert {name: held[name] for name in expected} == expected
    assert "input.value" not in held
    (event,) = span.events
    assert event.name == "gen_ai.evaluation.result"
    assert event.attributes["gen_ai.evaluation.name"] == "agentguard.finding"
    assert event.attributes["gen_ai.evaluation.score.label"] == "loop.exact"


def test_contents_are_recorded_only_on_request_and_without_keys() -> None:
    request = recorded(body=f"my prompt {KEY}".encode(), response_body=b"my answer", model=KEY)
    span = to_span(request, 10**18, TracingOptions(capture_content=True))
    assert span is not None
    assert str(span.attributes["input.value"]).startswith("my prompt")
    assert span.attributes["output.value"] == "my answer"
    assert KEY not in str(span)


def test_failed_request_has_error_status() -> None:
    span = to_span(recorded(status=502, error_code="backend_error"), 10**18, TracingOptions())
    assert span is not None
    assert (span.error, span.message, span.attributes["error.type"]) == (
        True,
        "backend_error",
        "backend_error",
    )


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
def test_collector_receives_every_span(tmp_path: Path, encoding: Any) -> None:
    with receiving(tmp_path) as held:
        spans = SpanExporter(TracingOptions(endpoint=held.url, encoding=encoding, flush_interval_s=0.05))
        for number in range(20):
            spans.record(recorded(request_id=f"r{number}", response_body=ANSWER))
        spans.record(recorded(api=""))  # pass-through requests have no span
        spans.close(60)
        assert (spans.sent, spans.dropped) == (20, 0)


def test_missing_collector_drops_and_counts_spans_without_blocking() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # no server listens there
        spans = SpanExporter(
            TracingOptions(
                endpoint=f"http://127.0.0.1:{taken.getsockname()[1]}", max_queue=5, flush_interval_s=0.05
            )
        )
        began = time.monotonic()
        for number in range(1000):
            spans.record(recorded(request_id=f"r{number}"))
        assert time.monotonic() - began < 60, "who waits for a span until it is given up waits for seconds"
        assert spans.dropped >= 900
        spans.close(0.2)
        assert spans.dropped >= 990
        assert ("spans_dropped", (), spans.dropped) in spans.collect_metrics()


def test_exporter_headers_come_from_environment() -> None:
    options = TracingOptions(endpoint="http://localhost:4318", headers_env="OTLP_KEYS")
    target = options.resolve_target({"OTLP_KEYS": "authorization=Bearer%20x,a=b"})
    assert target is not None
    assert target.headers == {"authorization": "Bearer x", "a": "b"}
    assert "Bearer" not in repr(target)
    with pytest.raises(ConfigError, match="OTLP_KEYS"):
        options.resolve_target({})
    with pytest.raises(ValidationError, match="contains credentials"):
        TracingOptions(endpoint="http://user:pass@localhost")
