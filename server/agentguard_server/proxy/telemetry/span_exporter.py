"""Exporter of one span per request; a thread sends the spans to an OpenTelemetry collector in batches.

A request only adds a few fields to a bounded queue. Spans beyond its limit, and spans that the collector
rejects, are dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from agentguard.backends.base import Headers
from agentguard.errors import AgentGuardError
from agentguard.otlp.exporter import ExportTarget, SpanSender
from agentguard.otlp.model import EVALUATION_EVENT, AttributeValue, OtlpSpan, SpanEvent
from agentguard.trajectory.redaction import Redactor
from agentguard_server.proxy.hooks import CompletedRequest, ProxyRequest
from agentguard_server.proxy.telemetry.metrics import FindingDeduplicator, MetricSample, extract_token_usage
from agentguard_server.proxy.telemetry.options import TracingOptions
from agentguard_server.proxy.telemetry.trace_context import build_propagation_headers, extract_trace_context

_LOG = logging.getLogger(__name__)
_MAX_BATCH: Final = 512
_MAX_QUEUE_BYTES: Final = 32 * 1024 * 1024
_WARNING_INTERVAL_S: Final = 60.0


class SpanExporter:
    """Request observer that exports spans; the first request starts its thread.

    Args:
        options: section ``tracing`` of the configuration.
        target: export target; by default the target in the options.

    Attributes:
        sent: number of spans that the collector accepted.
        dropped: number of spans that did not fit into the queue or could not be sent.

    Raises:
        ConfigError: the variable with the headers is not set or not valid.
        MissingExtra: the extra ``otel`` is not installed.
    """

    def __init__(self, options: TracingOptions, *, target: ExportTarget | None = None) -> None:
        target = target or options.resolve_target()
        if target is None:
            raise ValueError("tracing needs an endpoint")
        self.options = options
        # Create the sender here: an import of its client in the thread would block all requests.
        self._sender = SpanSender(target)
        self._queue: deque[tuple[int, CompletedRequest]] = deque()
        self._queued_bytes = 0
        self._wake_event = threading.Event()
        self._is_closing = False
        self._finding_deduplicator = FindingDeduplicator()
        self._thread: threading.Thread | None = None
        self._warned_at = float("-inf")
        self.sent = self.dropped = 0

    def build_trace_headers(self, request: ProxyRequest) -> Headers:
        """Return the trace headers for the endpoint, with the proxy's span as the parent."""
        return build_propagation_headers(request, self.options.sample_ratio)

    def record(self, completed: CompletedRequest) -> None:
        """Queue a completed request of a model API."""
        if not completed.request.api:
            return
        completed = self._truncate(completed)
        size = len(completed.request.body) + len(completed.response_body)
        if (
            len(self._queue) >= self.options.max_queue
            or self._queued_bytes + size > _MAX_QUEUE_BYTES
            or self._is_closing
        ):
            self.dropped += 1
            return
        self._queue.append((time.time_ns(), completed))
        self._queued_bytes += size
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="agentguard-spans", daemon=True)
            self._thread.start()

    def collect_metrics(self) -> Iterable[MetricSample]:
        """Return the counters of sent and dropped spans."""
        return (("spans_sent", (), self.sent), ("spans_dropped", (), self.dropped))

    def close(self, timeout_s: float = 2.0) -> None:
        """Send the queued spans until the timeout; the rest is dropped."""
        self._is_closing = True
        self._wake_event.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
        self.dropped += len(self._queue)
        self._queue.clear()

    def _truncate(self, completed: CompletedRequest) -> CompletedRequest:
        """Truncate the request body; keep both ends of a long response unless content is captured."""
        request, response, captures = completed.request, completed.response_body, self.options.capture_content
        max_bytes = 4 * self.options.max_chars if captures else 2 * EDGE_BYTES
        if len(request.body) <= max_bytes and len(response) <= max_bytes:
            return completed  # a copy would take longer than the rest of this method
        if len(response) > max_bytes:
            response = response[:max_bytes] if captures else response[:EDGE_BYTES] + response[-EDGE_BYTES:]
        request = replace(request, body=request.body[:max_bytes])
        return replace(completed, request=request, sent_body=None, response_body=response)

    def _run(self) -> None:
        asyncio.run(self._export())

    async def _export(self) -> None:
        async with self._sender:
            while not self._is_closing or self._queue:
                if not self._is_closing and len(self._queue) < _MAX_BATCH:
                    # This blocks the event loop, but the thread has no other tasks.
                    self._wake_event.wait(self.options.flush_interval_s)
                if self._queue:
                    await self._send_batch()

    async def _send_batch(self) -> None:
        taken = [self._queue.popleft() for _ in range(min(_MAX_BATCH, len(self._queue)))]
        # Compute the sums before the subtraction: ``-=`` with a call could lose concurrent additions.
        size, count = sum(len(one.request.body) + len(one.response_body) for _, one in taken), len(taken)
        self._queued_bytes -= size
        try:
            spans = [span for at, one in taken if (span := self._build_span(at, one)) is not None]
            result = await self._sender.send(spans) if spans else None
        except AgentGuardError as error:
            self.dropped += count
            self._warn_dropped(f"{error.code}: {error}")
        except Exception as error:  # one failed span must not stop the thread
            self.dropped += count
            self._warn_dropped(type(error).__name__)
        else:
            rejected = result.rejected if result else 0
            self.sent += len(spans) - rejected
            self.dropped += rejected

    def _build_span(self, at_ns: int, completed: CompletedRequest) -> OtlpSpan | None:
        outcome = completed.guard_outcome
        findings = (
            []
            if outcome is None
            else self._finding_deduplicator.select_new(completed.request.tenant, outcome)
        )
        return to_span(completed, at_ns, self.options, findings=findings)

    def _warn_dropped(self, reason: str) -> None:
        """Log dropped spans, at most once a minute."""
        if time.monotonic() - self._warned_at > _WARNING_INTERVAL_S:
            self._warned_at = time.monotonic()
            _LOG.warning("spans were dropped: %s", reason)


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
    input_tokens, output_tokens = extract_token_usage(body)
    if input_tokens:
        yield "gen_ai.usage.input_tokens", input_tokens
        yield "llm.token_count.prompt", input_tokens
    if output_tokens:
        yield "gen_ai.usage.output_tokens", output_tokens
        yield "llm.token_count.completion", output_tokens


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
