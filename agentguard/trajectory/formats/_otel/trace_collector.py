"""Collector of the spans of several traces, in the order they are added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentguard.errors import FormatError
from agentguard.trajectory.formats._otel.own_attributes import RUN_ID
from agentguard.trajectory.formats._otel.roundtrip import read_exported_run
from agentguard.trajectory.formats._otel.spans import SourceSpan, SpanKind, collect_evaluations
from agentguard.trajectory.formats._otel.steps import SpanTrajectoryBuilder
from agentguard.trajectory.grouping import normalize_group_key
from agentguard.trajectory.model import Annotation, Record

_KIND_HINT = "spans need gen_ai.operation.name or openinference.span.kind"


class TraceCollector:
    """Spans by trace.

    Attributes:
        spans: trace id to its spans.
        count: number of the spans.
    """

    def __init__(self, format: str) -> None:
        self.spans: dict[str, list[SourceSpan]] = {}
        self.count = 0
        self._resources: dict[str, Mapping[str, Any]] = {}
        self._format = format

    def add_span(self, trace: str, span: SourceSpan, resource: Mapping[str, Any]) -> None:
        """Add a span of a trace; the first resource of a trace counts."""
        self.spans.setdefault(trace, []).append(span)
        self._resources.setdefault(trace, resource)
        self.count += 1

    def build_records(self, *, field: str | None = None) -> Iterator[Record]:
        """Yield a run for each trace with a model call, a tool call or an agent; skip web requests.

        Args:
            field: path of the spans, for the error.

        Raises:
            FormatError: there is no such trace.
        """
        agentic = {trace: spans for trace, spans in self.spans.items() if any(map(_is_agentic, spans))}
        if not agentic:
            reason = "no model call, tool call or agent among the spans"
            raise FormatError(reason, field=field, hint=_KIND_HINT)
        for trace, spans in agentic.items():
            yield self._build_record(trace, spans, self._resources[trace])

    def _build_record(self, trace: str, spans: Sequence[SourceSpan], resource: Mapping[str, Any]) -> Record:
        conversation = next(filter(None, (span.get_text("conversation") for span in spans)), "")
        extra: dict[str, Any] = {"resource": resource} if resource else {}
        if conversation:
            extra["conversation"] = conversation
        trajectory = read_exported_run(spans, format=self._format, extra=extra)
        if trajectory is None:
            trajectory = SpanTrajectoryBuilder(spans).build_trajectory(
                id=trace, format=self._format, extra=extra
            )
        evaluations = collect_evaluations(spans)
        return Record(
            trajectory=trajectory,
            annotation=Annotation(
                group=normalize_group_key(trajectory.task) or None,
                extra={"spans": evaluations} if evaluations else {},
            ),
        )


def _is_agentic(span: SourceSpan) -> bool:
    return (
        span.kind is not SpanKind.OTHER or RUN_ID in span.attributes or span.get_value("history") is not None
    )
