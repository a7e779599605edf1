"""Which trace a request is of: W3C Trace Context, taken from the client and handed on.

Source: https://www.w3.org/TR/trace-context/ (version 00 of ``traceparent``). The span of a request gets an id
that follows from the request's own, so that what is sent upstream and what is recorded afterwards agree
without anything being kept between them.
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
    """Where a request's span stands.

    Attributes:
        trace_id: 32 hexadecimal digits.
        span_id: of the request's own span, 16 digits.
        parent_id: of the client's span; None if it told of none.
        sampled: whether the span is recorded.
    """

    trace_id: str
    span_id: str
    parent_id: str | None
    is_sampled: bool

    @property
    def traceparent(self) -> bytes:
        """What is sent upstream."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}".encode()


def extract_trace_context(request: ProxyRequest, sample_ratio: float = 1.0) -> TraceContext:
    """The trace of a request: the client's, or one that begins here.

    Args:
        asked: the request.
        sample: share of the traces that begin here that are recorded; the id decides, so that who is asked
            again says the same.
    """
    given = [value for name, value in request.headers if name == b"traceparent"]
    found = _TRACEPARENT.fullmatch(given[0].strip()) if len(given) == 1 else None
    # A version that is not known may have more at its end; version 00 may not.
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


def propagation_headers(request: ProxyRequest, sample_ratio: float = 1.0) -> Headers:
    """The headers that take the place of the client's upstream: our span is the parent of what happens there.

    A state without a trace that it belongs to means nothing: an empty one takes its place.
    """
    trace = extract_trace_context(request, sample_ratio)
    made: Headers = ((b"traceparent", trace.traceparent),)
    if trace.parent_id is None and any(name == b"tracestate" for name, _ in request.headers):
        return (*made, (b"tracestate", b""))
    return made
