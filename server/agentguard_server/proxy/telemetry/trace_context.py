"""W3C Trace Context of a request: extraction from the client's headers and propagation upstream.

Source: https://www.w3.org/TR/trace-context/ (version 00 of ``traceparent``). The span ID is derived from the
request ID. The header sent upstream and the span exported later therefore agree without shared state.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from agentguard.backends.base import Headers
from agentguard.otlp.model import build_span_id
from agentguard_server.proxy.hooks import ProxyRequest

_TRACEPARENT: Final = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceContext:
    """Trace context of a request.

    Attributes:
        trace_id: ID of the trace, 32 hexadecimal digits.
        span_id: ID of the request's span, 16 hexadecimal digits.
        parent_id: ID of the client's span; None if the client sent no trace context.
        is_sampled: True if the span is recorded.
    """

    trace_id: str
    span_id: str
    parent_id: str | None
    is_sampled: bool

    @property
    def traceparent(self) -> bytes:
        """Return the ``traceparent`` header to send upstream."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}".encode()


def extract_trace_context(request: ProxyRequest, sample_ratio: float = 1.0) -> TraceContext:
    """Return the client's trace context, or a new one.

    Args:
        request: the request.
        sample_ratio: share of new traces to record. The decision depends only on the trace ID, so that
            repeated calls agree.
    """
    values = [value for name, value in request.headers if name == b"traceparent"]
    found = _TRACEPARENT.fullmatch(values[0].strip()) if len(values) == 1 else None
    # An unknown version may have further fields at its end; version 00 may not.
    if found is None or (found[1] == b"00" and found[5]):
        trace_id = hashlib.sha256(b"agentguard trace\0" + request.request_id.encode()).hexdigest()[:32]
        sampled = int(trace_id[:13], 16) < sample_ratio * 16**13
        return TraceContext(
            trace_id=trace_id,
            span_id=build_span_id(trace_id, request.request_id),
            parent_id=None,
            is_sampled=sampled,
        )
    trace_id = found[2].decode()
    return TraceContext(
        trace_id=trace_id,
        span_id=build_span_id(trace_id, request.request_id),
        parent_id=found[3].decode(),
        is_sampled=bool(int(found[4], 16) & 1),
    )


def build_propagation_headers(request: ProxyRequest, sample_ratio: float = 1.0) -> Headers:
    """Return the trace headers to send upstream, with the proxy's span as the parent.

    A ``tracestate`` of the client without a valid ``traceparent`` is replaced by an empty one.
    """
    trace = extract_trace_context(request, sample_ratio)
    headers: Headers = ((b"traceparent", trace.traceparent),)
    if trace.parent_id is None and any(name == b"tracestate" for name, _ in request.headers):
        return (*headers, (b"tracestate", b""))
    return headers
