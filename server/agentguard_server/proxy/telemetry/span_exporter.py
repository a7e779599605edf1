"""Exporter of one span per request; a thread sends the spans to an OpenTelemetry collector in batches.

A request only adds a few fields to a bounded queue. Spans beyond its limit, and spans that the collector
rejects, are dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from agentguard.backends.base import Headers
from agentguard.errors import AgentGuardError
from agentguard.otlp.exporter import ExportTarget, SpanSender
from agentguard.otlp.model import OtlpSpan
from agentguard_server.proxy.hooks import CompletedRequest, ProxyRequest
from agentguard_server.proxy.telemetry.metrics import FindingDeduplicator, MetricSample
from agentguard_server.proxy.telemetry.options import TracingOptions
from agentguard_server.proxy.telemetry.span_mapping import EDGE_BYTES, to_span
from agentguard_server.proxy.telemetry.trace_context import propagation_headers

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
        found = target or options.resolve_target()
        if found is None:
            raise ValueError("tracing needs an endpoint")
        self.options, self._target = options, found
        # Create the sender here: an import of its client in the thread would block all requests.
        self._sender = SpanSender(found)
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
        return propagation_headers(request, self.options.sample_ratio)

    def record(self, completed: CompletedRequest) -> None:
        """Queue a completed request of a model API."""
        if not completed.request.api:
            return
        kept = self._truncate(completed)
        size = len(kept.request.body) + len(kept.response_body)
        if (
            len(self._queue) >= self.options.max_queue
            or self._queued_bytes + size > _MAX_QUEUE_BYTES
            or self._is_closing
        ):
            self.dropped += 1
            return
        self._queue.append((time.time_ns(), kept))
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
        left = len(self._queue)
        self.dropped += left
        self._queue.clear()

    def _truncate(self, completed: CompletedRequest) -> CompletedRequest:
        """Truncate the request body; keep both ends of a long response unless content is captured."""
        asked, answer, shown = completed.request, completed.response_body, self.options.capture_content
        most = 4 * self.options.max_chars if shown else 2 * EDGE_BYTES
        if len(asked.body) <= most and len(answer) <= most:
            return completed  # a copy would take longer than the rest of this method
        if len(answer) > most:
            answer = answer[:most] if shown else answer[:EDGE_BYTES] + answer[-EDGE_BYTES:]
        return replace(
            completed, request=replace(asked, body=asked.body[:most]), sent_body=None, response_body=answer
        )

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
            found = await self._sender.send(spans) if spans else None
        except AgentGuardError as error:
            self.dropped += count
            self._warn_dropped(f"{error.code}: {error}")
        except Exception as error:  # one failed span must not end the thread
            self.dropped += count
            self._warn_dropped(type(error).__name__)
        else:
            rejected = found.rejected if found else 0
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
            _LOG.warning("spans were lost: %s", reason)
