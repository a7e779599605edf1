"""Collector of the spans of several traces, in the order they are added."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from agentguard.errors import FormatError, InputError
from agentguard.trajectory import span_attributes
from agentguard.trajectory.formats._content_parts import flatten_text
from agentguard.trajectory.formats._otel.messages import extract_messages
from agentguard.trajectory.formats._otel.spans import (
    OperationKind,
    SourceSpan,
    collect_evaluations,
    decode_json_text,
    parse_span_tools,
    parse_span_usage,
)
from agentguard.trajectory.formats._otel.steps import SpanTrajectoryBuilder
from agentguard.trajectory.formats.base import SourceItem, UnreadableRecord
from agentguard.trajectory.grouping import normalize_group_key
from agentguard.trajectory.model import Annotation, Branch, Observation, Record, Source, Step, Trajectory

_KIND_HINT = "spans need gen_ai.operation.name or openinference.span.kind"


class TraceCollector:
    """Spans by trace.

    Attributes:
        spans: spans by trace id.
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

    def read_sequence(
        self, items: Iterator[SourceItem], add_spans: Callable[[Any], None], *, field: str | None = None
    ) -> Iterator[Record | UnreadableRecord]:
        """Yield an UnreadableRecord for each item with an error, then the runs of all items.

        Args:
            items: the items of the source; the spans of a trace may be in several of them.
            add_spans: function that adds the spans of the value of an item. It may raise an InputError.
            field: path of the spans, for the error of `build_records`.
        """
        has_errors = False
        for item in items:
            try:
                add_spans(item.read())
            except InputError as error:
                has_errors = True
                yield UnreadableRecord(error=error.with_location(record=item.position))
        if self.spans or not has_errors:
            yield from self.build_records(field=field)

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
        span.kind is not OperationKind.OTHER
        or span_attributes.RUN_ID in span.attributes
        or span.get_value("history") is not None
    )


def read_exported_run(
    spans: Sequence[SourceSpan], *, format: str, extra: Mapping[str, Any]
) -> Trajectory | None:
    """Return the original run of ``spans``; None if the spans are not our own, or too many are missing."""
    root = next(
        (
            candidate
            for candidate in spans
            if isinstance(candidate.attributes.get(span_attributes.RUN_ID), str)
        ),
        None,
    )
    if root is None:
        return None
    branches: dict[str, dict[int, SourceSpan]] = {}
    observations: dict[str, dict[int, SourceSpan]] = {}
    for span in spans:
        index, place = (
            _read_integer(span, span_attributes.STEP),
            _read_integer(span, span_attributes.OBSERVATION),
        )
        if index is not None:
            branches.setdefault(_read_branch_id(span), {})[index] = span
        elif place is not None and span.parent is not None:
            observations.setdefault(span.parent, {})[place] = span
    if not branches:
        return None
    steps_by_branch = {
        branch: _build_steps(spans_by_index, observations) for branch, spans_by_index in branches.items()
    }
    return Trajectory(
        id=str(root.attributes[span_attributes.RUN_ID]),
        format=format,
        task=_read_task(root),
        steps=steps_by_branch.get("", ()),
        tools=tuple(parse_span_tools(root)),
        system_prompts=_read_system_prompts(root, branches),
        branches=tuple(
            _build_branch(candidate, steps_by_branch)
            for candidate in spans
            if _read_integer(candidate, span_attributes.FORK_STEP) is not None
        ),
        exit_status=_read_text(root, span_attributes.EXIT_STATUS),
        unknown_parts=_read_counts(root),
        is_content_recorded=root.attributes.get(span_attributes.CONTENT_RECORDED) is not False,
        extra=extra,
    )


def _read_integer(span: SourceSpan, name: str) -> int | None:
    value = span.attributes.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _read_branch_id(span: SourceSpan) -> str:
    return flatten_text(span.attributes.get(span_attributes.BRANCH))


def _build_steps(
    spans: Mapping[int, SourceSpan], children: Mapping[str, Mapping[int, SourceSpan]]
) -> tuple[Step, ...]:
    """Return the steps of a branch, numbered without gaps: some of its spans may be missing."""
    first_index = min(spans) if min(spans) and _read_branch_id(spans[min(spans)]) else 0
    return tuple(
        _build_step(first_index + place, spans[index], children.get(spans[index].id, {}))
        for place, index in enumerate(sorted(spans))
    )


def _build_step(index: int, span: SourceSpan, children: Mapping[int, SourceSpan]) -> Step:
    source_name = flatten_text(span.attributes.get(span_attributes.SOURCE))
    source = Source(source_name) if source_name in set(Source) else Source.AGENT
    message = next(iter(extract_messages(span, "output")), None) if source is Source.AGENT else None
    times = span.attributes.get(span_attributes.TIMES)
    model = span.attributes.get("gen_ai.request.model")
    return Step(
        index=index,
        source=source,
        agent=flatten_text(span.attributes.get("gen_ai.agent.name")),
        content=message.content if message else flatten_text(span.attributes.get("output.value")),
        reasoning=message.reasoning if message else "",
        tool_calls=message.calls if message else (),
        observations=tuple(_build_observation(children[place]) for place in sorted(children)),
        started_at=span.start if times in ("both", "start") else None,
        ended_at=span.end if times in ("both", "end") else None,
        usage=parse_span_usage(span) if span.kind is OperationKind.LLM else None,
        model=model if isinstance(model, str) else None,
        source_index=span.position,
        stop_reason=_read_stop_reason(span),
        unknown_parts=_read_types(span),
    )


def _read_stop_reason(span: SourceSpan) -> str | None:
    reasons = decode_json_text(span.attributes.get("gen_ai.response.finish_reasons"))
    first = reasons[0] if isinstance(reasons, list) and reasons else None
    return first if isinstance(first, str) else None


def _read_types(span: SourceSpan) -> tuple[str, ...]:
    types = decode_json_text(span.attributes.get(span_attributes.UNKNOWN_PARTS))
    return tuple(kind for kind in types if isinstance(kind, str)) if isinstance(types, list) else ()


def _read_counts(root: SourceSpan) -> dict[str, int]:
    counts = decode_json_text(root.attributes.get(span_attributes.UNKNOWN_PARTS))
    return {kind: n for kind, n in counts.items() if type(n) is int} if isinstance(counts, dict) else {}


def _read_text(span: SourceSpan, name: str) -> str | None:
    value = span.attributes.get(name)
    return value if isinstance(value, str) else None


def _build_observation(span: SourceSpan) -> Observation:
    unpaired_kind = span.attributes.get(span_attributes.UNPAIRED)
    call_id = span.attributes.get("gen_ai.tool.call.id")
    return Observation(
        content=flatten_text(span.attributes.get("gen_ai.tool.call.result")),
        call_id=call_id if isinstance(call_id, str) and unpaired_kind not in ("call", "both") else None,
        tool=None
        if unpaired_kind in ("tool", "both")
        else flatten_text(span.attributes.get("gen_ai.tool.name")),
        is_error=span.error,
    )


def _build_branch(span: SourceSpan, steps: Mapping[str, tuple[Step, ...]]) -> Branch:
    parent = span.attributes.get(span_attributes.PARENT)
    return Branch(
        id=_read_branch_id(span),
        fork_step=_read_integer(span, span_attributes.FORK_STEP) or 0,
        steps=steps.get(_read_branch_id(span), ()),
        parent=parent if isinstance(parent, str) else None,
        reason=flatten_text(span.attributes.get(span_attributes.REASON)),
    )


def _read_task(root: SourceSpan) -> str:
    return next((one.content for one in extract_messages(root, "input") if one.content), "")


def _read_system_prompts(
    root: SourceSpan, branches: Mapping[str, Mapping[int, SourceSpan]]
) -> dict[str, str]:
    prompts: dict[str, str] = {}
    steps = [spans[index] for spans in branches.values() for index in sorted(spans)]
    for span in (root, *steps):
        prompt = flatten_text(decode_json_text(span.attributes.get("gen_ai.system_instructions")))
        if prompt:
            agent = "" if span is root else flatten_text(span.attributes.get("gen_ai.agent.name"))
            prompts.setdefault(agent, prompt)
    return prompts
