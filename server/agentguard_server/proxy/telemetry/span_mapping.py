"""Mapping of requests to spans by OpenTelemetry's conventions for generative AI (status: Development).

Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/. Attributes of OpenInference are
added, as in `agentguard.otlp`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from agentguard.otlp.model import EVALUATION_EVENT, AttributeValue, OtlpSpan, SpanEvent
from agentguard.trajectory.redaction import Redactor
from agentguard_server.proxy.hooks import CompletedRequest
from agentguard_server.proxy.telemetry.metrics import extract_token_usage
from agentguard_server.proxy.telemetry.options import TracingOptions
from agentguard_server.proxy.telemetry.trace_context import extract_trace_context

EDGE_BYTES: Final = 4096
"""Length of both ends of a response from which the attributes of a span are read."""

_OPERATIONS: Final[Mapping[str, str]] = {
    "chat": "chat",
    "responses": "chat",
    "messages": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
}
_ID: Final = re.compile(rb'(?<!\\)"id"\s*:\s*"([A-Za-z0-9_.:-]{1,200})"')
_MODEL: Final = re.compile(rb'(?<!\\)"model"\s*:\s*"([^"\\]{1,200})"')
_FINISH_REASON: Final = re.compile(rb'(?<!\\)"(?:finish_reason|stop_reason)"\s*:\s*"([a-z_]{1,40})"')
_REDACTOR: Final = Redactor()


def to_span(
    completed: CompletedRequest, ended_ns: int, options: TracingOptions, *, findings: Sequence[str] = ()
) -> OtlpSpan | None:
    """Convert a completed request into a span; return None if its trace is not sampled.

    Args:
        completed: the request.
        ended_ns: end of the request in nanoseconds since 1970.
        options: section ``tracing`` of the configuration.
        findings: codes of the findings to report.
    """
    trace = extract_trace_context(completed.request, options.sample_ratio)
    if not trace.is_sampled:
        return None
    asked = completed.request
    operation = _OPERATIONS.get(asked.api, asked.api)
    failed = completed.status >= 400 or not completed.is_complete
    return OtlpSpan(
        trace_id=trace.trace_id,
        span_id=trace.span_id,
        parent_id=trace.parent_id,
        name=f"{operation} {_shorten(asked.model)}".strip(),
        start_ns=ended_ns - int(completed.duration_s * 1e9),
        end_ns=ended_ns,
        attributes=dict(_build_attributes(completed, operation, options)),
        events=tuple(_build_evaluation_events(completed, findings, ended_ns)),
        error=failed or None,
        message=completed.error_code if failed else "",
        kind="client",
    )


def _build_attributes(
    completed: CompletedRequest, operation: str, options: TracingOptions
) -> Iterator[tuple[str, AttributeValue]]:
    asked, outcome = completed.request, completed.guard_outcome
    run = asked.run_id if outcome is None else outcome.run_id
    yield "gen_ai.operation.name", operation
    yield "gen_ai.provider.name", "anthropic" if asked.api == "messages" else "openai"
    yield "openinference.span.kind", "EMBEDDING" if asked.api == "embeddings" else "LLM"
    yield "http.response.status_code", completed.status
    yield "agentguard.request.id", asked.request_id
    yield "agentguard.request.stream", asked.stream
    texts = {
        "gen_ai.request.model": asked.model,
        "llm.model_name": asked.model,
        "gen_ai.conversation.id": run,
        "session.id": run,
        "agentguard.tenant": asked.tenant,
        "agentguard.replica": completed.replica,
        "error.type": completed.error_code or (str(completed.status) if completed.status >= 400 else ""),
    }
    yield from ((name, _shorten(value)) for name, value in texts.items() if value)
    yield from ((f"agentguard.note.{_shorten(name)}", _shorten(value)) for name, value in completed.notes)
    if completed.time_to_first_byte_s is not None:
        yield "agentguard.first_byte_s", completed.time_to_first_byte_s
    if completed.status < 300:
        yield from _build_response_attributes(completed.response_body)
    if options.capture_content:
        yield "input.value", _format_body(asked.body, options.max_chars)
        yield "output.value", _format_body(completed.response_body, options.max_chars)


def _build_response_attributes(body: bytes) -> Iterator[tuple[str, AttributeValue]]:
    """Yield attributes from both ends of a response."""
    head, tail = body[:EDGE_BYTES], body[-EDGE_BYTES:]
    for name, pattern in (("gen_ai.response.id", _ID), ("gen_ai.response.model", _MODEL)):
        if found := pattern.search(head):
            yield name, _shorten(found[1].decode("utf-8", "replace"))
    if finished := _FINISH_REASON.findall(tail):
        yield "gen_ai.response.finish_reasons", tuple(one.decode() for one in finished[-8:])
    given, made = extract_token_usage(body)
    if given:
        yield "gen_ai.usage.input_tokens", given
        yield "llm.token_count.prompt", given
    if made:
        yield "gen_ai.usage.output_tokens", made
        yield "llm.token_count.completion", made


def _build_evaluation_events(
    completed: CompletedRequest, findings: Sequence[str], at_ns: int
) -> Iterator[SpanEvent]:
    """Yield one event for each finding and each recovery of the guard."""
    for code in findings:
        yield _build_event("agentguard.finding", code, at_ns)
    if completed.guard_outcome is not None:
        for strategy, _ in completed.guard_outcome.recoveries:
            yield _build_event("agentguard.recovery", strategy, at_ns)


def _build_event(name: str, label: str, at_ns: int) -> SpanEvent:
    attributes = {"gen_ai.evaluation.name": name, "gen_ai.evaluation.score.label": label}
    return SpanEvent(name=EVALUATION_EVENT, at_ns=at_ns, attributes=attributes)


@lru_cache(maxsize=1024)
def _shorten(text: str) -> str:
    return _REDACTOR.redact_text(text[:600])[:300]


def _format_body(body: bytes, max_chars: int) -> str:
    return _REDACTOR.redact_text(body[: 4 * max_chars].decode("utf-8", "replace"))[:max_chars]
