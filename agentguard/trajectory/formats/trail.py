"""TRAIL: OpenInference traces of real agents, with errors annotated at single spans.

Source: arXiv 2505.08638. A trace is ``{trace_id, spans: [{span_id, span_name, span_attributes, timestamp,
duration, child_spans, ...}]}``; its annotation is ``{errors: [{category, location, evidence, description,
impact}], scores: [...]}`` where ``location`` is a span id. The importer reads three layouts:

- a record with both: ``{"trace": ..., "labels": ...}``, each an object or its JSON text;
- a trace with the keys of the annotation beside its own keys;
- a folder with two folders, in which a trace and its annotation are files with the same name, such as
  ``GAIA/<id>.json`` and ``processed_annotations_gaia/<id>.json``.

The owners forbid redistribution of the data; this module only reads it.

Spans of the benchmark's code, and the logs of any span, may quote the gold answer: they are part of the
annotation, not of the trajectory. An annotated error is an error in a span. It does not mean that the run
failed, so ``failed`` is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentguard.errors import FormatError, InputError
from agentguard.trajectory.formats._content_parts import flatten_text
from agentguard.trajectory.formats._dataset_folder import read_document
from agentguard.trajectory.formats._otel.spans import (
    ATTRIBUTE_NAMES,
    SourceSpan,
    collect_evaluations,
    collect_unmapped,
)
from agentguard.trajectory.formats._otel.steps import SpanTrajectoryBuilder
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import list_run_files
from agentguard.trajectory.grouping import normalize_group_key
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Annotation, Record, RootCause, Trajectory
from agentguard.trajectory.safe_json import loads

_KNOWN_SPAN_FIELDS = (
    *("span_id", "parent_span_id", "span_name", "span_attributes", "timestamp", "duration"),
    *("status_code", "status_message", "events", "logs", "child_spans", "trace_id"),
)
_ANNOTATIONS_GLOB = "processed_annotations_*/*.json"
_DURATION_PATTERN = re.compile(r"PT(?:(\d{1,6})H)?(?:(\d{1,6})M)?(?:(\d{1,9}(?:\.\d{1,12})?)S)?", re.ASCII)
_CATEGORY_ALIASES = {
    "hallucinations_language_only": "language_only",
    "hallucinations_tool_related": "tool_related",
    "tool_selection": "tool_selection_errors",
    "tool_selection_error": "tool_selection_errors",
    "formatting_error": "formatting_errors",
    "instruction_non_complience": "instruction_non_compliance",
    "tool_definition_issue": "tool_definition_issues",
    "environment_setup_error": "environment_setup_errors",
    "authentication_error": "authentication_errors",
    "service_error": "service_errors",
    "timeout_issue": "timeout_issues",
    "context_handling_failure": "context_handling_failures",
    "task_orchestration_error": "task_orchestration",
    "task_orchestration_errors": "task_orchestration",
}
CATEGORIES = frozenset(
    {
        *("language_only", "tool_related", "poor_information_retrieval", "tool_output_misinterpretation"),
        *("incorrect_problem_identification", "tool_selection_errors", "formatting_errors"),
        *("instruction_non_compliance", "tool_definition_issues", "environment_setup_errors"),
        *("rate_limiting", "authentication_errors", "service_errors", "resource_not_found"),
        *("resource_exhaustion", "timeout_issues", "context_handling_failures", "resource_abuse"),
        *("goal_deviation", "task_orchestration"),
    }
)


class Trail:
    """Importer of TRAIL's traces with errors at spans."""

    name = "trail"
    summary = "TRAIL: OpenInference traces with errors annotated at spans"

    def score_match(self, value: Any) -> float:
        """Return a positive score for spans with ``span_attributes``, alone or under ``trace``."""
        trace = _unwrap_trace(value) if isinstance(value, Mapping) else None
        spans = trace.get("spans") if isinstance(trace, Mapping) else None
        if not isinstance(spans, list) or not all(isinstance(span, Mapping) for span in spans):
            return 0.0
        return 0.95 if any("span_attributes" in span or "child_spans" in span for span in spans) else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of a record. Raises FormatError with the field."""
        record = JsonNode.from_value(value)
        trace = JsonNode.from_value(_unwrap_trace(value), "trace" if "trace" in record.data else "")
        labels = _parse_nested_document(record.raw("labels")) if "labels" in record else value
        yield _build_record(
            trace, JsonNode.from_value(labels, "labels" if "labels" in record else ""), name=name
        )

    def parse_folder(self, folder: Path) -> Iterator[Record | UnreadableRecord] | None:
        """Yield the runs of a folder of traces and ``processed_annotations_*``; None for another folder."""
        paths = (*folder.glob(_ANNOTATIONS_GLOB), *folder.glob(f"*/{_ANNOTATIONS_GLOB}"))
        labels = {path.stem: path for path in paths if path.is_file()}
        return _join_labels(folder, labels) if labels else None


def _join_labels(folder: Path, labels: Mapping[str, Path]) -> Iterator[Record | UnreadableRecord]:
    for path in list_run_files(folder):
        if path.suffix != ".json" or path.parent.name.startswith("processed_annotations_"):
            continue
        try:
            record = {"trace": read_document(path)}
            if path.stem in labels:
                record["labels"] = read_document(labels[path.stem])
            yield from FORMAT.parse(record, name=path.stem)
        except InputError as error:
            yield UnreadableRecord(error=error.with_location(file=str(path)))


def _unwrap_trace(value: Mapping[str, Any]) -> Any:
    return _parse_nested_document(value["trace"]) if "trace" in value else value


def _parse_nested_document(value: Any) -> Any:
    """Return a part of a record that may be JSON text inside JSON."""
    if isinstance(value, str):
        try:
            return loads(value)
        except FormatError:
            return value
    return value


def _build_record(trace: JsonNode, labels: JsonNode, *, name: str) -> Record:
    logs: dict[str, Any] = {}
    spans = list(_flatten_spans(trace, logs))
    run = SpanTrajectoryBuilder(spans)
    span_data = {
        **trace.extra_fields("trace_id", "spans", "errors", "scores", "trace", "labels"),
        "logs": logs,
        "judgements": collect_evaluations(spans),
        "spans": [collect_unmapped(s) for s in run.unmapped_spans if _is_harness_span(s)],
    }
    run.unmapped_spans = [span for span in run.unmapped_spans if not _is_harness_span(span)]
    trajectory = run.build_trajectory(id=trace.scalar_or("trace_id", name), format=Trail.name, extra={})
    span_data = {key: value for key, value in span_data.items() if value}
    return Record(trajectory=trajectory, annotation=_build_annotation(labels, trajectory, run, span_data))


def _is_harness_span(span: SourceSpan) -> bool:
    """Return True if a span is of the benchmark's own code, not of the agent."""
    return not any(name in span.attributes for name in ATTRIBUTE_NAMES["kind"])


def _flatten_spans(trace: JsonNode, logs: dict[str, Any]) -> Iterator[SourceSpan]:
    """Yield all spans, parents first; ``logs`` collects their logs."""
    stack: list[tuple[JsonNode, str | None]] = [(span, None) for span in reversed(list(trace.nodes("spans")))]
    position = 0
    while stack:
        node, parent = stack.pop()
        id = node.scalar_or("span_id", f"span_{position}")
        if node.raw("logs"):
            logs[id] = node.raw("logs")
        yield _parse_span(node, id, node.scalar_or("parent_span_id") or parent, position)
        position += 1
        stack.extend((child, id) for child in reversed(list(node.nodes_or("child_spans"))))


def _parse_span(node: JsonNode, id: str, parent: str | None, position: int) -> SourceSpan:
    start = node.timestamp("timestamp") if node.text_or("timestamp") else None
    seconds = _parse_duration(node, "duration")
    status = node.scalar_or("status_code").lower()
    events = tuple(
        (event.text_or("Name", event.text_or("name")), event.node_or("Attributes").data)
        for event in node.nodes_or("events")
    )
    return SourceSpan(
        id=id,
        parent=parent,
        name=node.text_or("span_name"),
        position=position,
        start=start,
        end=None if start is None or seconds is None else start + seconds,
        attributes=node.node_or("span_attributes").data,
        events=events,
        error=True if status == "error" else False if status == "ok" else None,
        status=node.text_or("status_message"),
        extra=node.extra_fields(*_KNOWN_SPAN_FIELDS),
    )


def _build_annotation(
    labels: JsonNode, trajectory: Trajectory, run: SpanTrajectoryBuilder, span_evaluations: dict[str, Any]
) -> Annotation:
    steps_by_span = run.map_spans_to_steps()
    failures = []
    for error in labels.nodes_or("errors"):
        step = steps_by_span.get(error.scalar_or("location").strip())
        code = parse_category(error.text_or("category"))
        failures.append(
            RootCause(
                step=step,
                agent=trajectory.steps[step].agent if step is not None else None,
                codes=() if code is None else (code,),
                reason=flatten_text(error.raw("description")),
            )
        )
    for key in ("errors", "scores"):
        if key in labels:
            span_evaluations[key] = labels.raw(key)
    return Annotation(
        failures=tuple(failures), group=normalize_group_key(trajectory.task) or None, extra=span_evaluations
    )


def parse_category(text: str) -> str | None:
    """Return the code of an annotated category; None if it is not a leaf of the taxonomy."""
    words = "_".join(re.findall(r"[a-z0-9]+", text.lower()))
    words = _CATEGORY_ALIASES.get(words, words)
    return f"trail:{words}" if words in CATEGORIES else None


def _parse_duration(node: JsonNode, key: str) -> float | None:
    """Convert an ISO 8601 duration of at most hours to seconds."""
    if key not in node:
        return None
    match = _DURATION_PATTERN.fullmatch(node.text(key))
    if match is None:
        raise node.build_error(key, "expected a duration such as PT1.5S")
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return 3600 * hours + 60 * minutes + seconds


FORMAT = Trail()
