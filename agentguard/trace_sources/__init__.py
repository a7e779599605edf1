"""Traces of Langfuse, LangSmith and Phoenix over their HTTP APIs; see docs/trace-sources.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.trace_sources.base import TraceQuery as TraceQuery, TraceSource as TraceSource
    from agentguard.trace_sources.reader import read_traces as read_traces
    from agentguard.trace_sources.url import (
        format_trace_url as format_trace_url,
        is_trace_url as is_trace_url,
        parse_trace_url as parse_trace_url,
    )

_EXPORTS = {
    "TraceQuery": "agentguard.trace_sources.base",
    "TraceSource": "agentguard.trace_sources.base",
    "format_trace_url": "agentguard.trace_sources.url",
    "is_trace_url": "agentguard.trace_sources.url",
    "parse_trace_url": "agentguard.trace_sources.url",
    "read_traces": "agentguard.trace_sources.reader",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, extra="traces")
