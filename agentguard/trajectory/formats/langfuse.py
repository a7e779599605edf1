"""Langfuse exports: traces with observations (UI download, API) and rows of observations.

Sources: Langfuse's public API (``/api/public/traces/{id}``, ``/api/public/v2/observations``), the download of
a trace, the JSON export of tables, and blob storage exports (names in snake case). Input, output and metadata
may be JSON in text, also twice. A trace is a run; rows of observations are grouped by trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentguard.errors import InputError
from agentguard.trajectory.formats._content_parts import flatten_text
from agentguard.trajectory.formats._otel.message_search import decode_value
from agentguard.trajectory.formats._otel.spans import SourceSpan
from agentguard.trajectory.formats._otel.steps import SpanTrajectoryBuilder
from agentguard.trajectory.formats.base import SourceItem, UnreadableRecord
from agentguard.trajectory.grouping import normalize_group_key
from agentguard.trajectory.json_node import JsonNode, wrap_nodes
from agentguard.trajectory.model import Annotation, Record
from agentguard.trajectory.usage import add_run_totals, parse_usage

_KINDS = {"GENERATION": "LLM", "TOOL": "TOOL", "RETRIEVER": "RETRIEVER", "AGENT": "AGENT"}
_TYPES = (*_KINDS, "SPAN", "EVENT", "CHAIN", "EMBEDDING", "EVALUATOR", "GUARDRAIL")
_TRACE_MARKS = frozenset({"bookmarked", "htmlPath", "public", "html_path"})
_JUDGEMENTS = ("scores", "corrections", "comments")
_TRACE_FIELDS = ("name", "sessionId", "userId", "environment", "release", "version", "tags")
_ROOT_ID = "trace"


class Langfuse:
    """Importer of Langfuse traces."""

    name = "langfuse"
    summary = "Langfuse traces (download, API) and tables of observations"

    def score_match(self, value: Any) -> float:
        """Return a positive score for a trace with observations, a page of the API, or a row of a table."""
        if not isinstance(value, Mapping):
            return 0.0
        rows = value.get("data") if "meta" in value else value.get("observations")
        if isinstance(rows, list) and rows:
            return max(self.score_match(row) for row in rows[:3]) if isinstance(rows[0], Mapping) else 0.0
        if value.get("type") in _TYPES and not {"traceId", "trace_id"}.isdisjoint(value):
            return 0.97
        return 0.95 if _is_trace(value) else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of a trace, or the runs of a page of the API."""
        yield from _parse_items([value], name)

    def parse_sequence(
        self, items: Iterator[SourceItem], *, name: str
    ) -> Iterator[Record | UnreadableRecord]:
        """Yield the runs of several traces, or of rows of observations in any order."""
        values = []
        for item in items:
            try:
                if not _is_observation(item.read()):
                    yield from _parse_items([item.value], f"{name}#{item.position}")
                else:
                    _parse_observation(JsonNode(_camelize(item.value)), item.position)
                    values.append(item.value)
            except InputError as error:
                yield UnreadableRecord(error=error.with_location(record=item.position))
        yield from _parse_items(values, name)


def _is_observation(value: Any) -> bool:
    return isinstance(value, Mapping) and not {"traceId", "trace_id"}.isdisjoint(value) and "type" in value


def _is_trace(value: Mapping[str, Any]) -> bool:
    trace = value["trace"] if isinstance(value.get("trace"), Mapping) else value
    return {"id", "timestamp", "input", "output"} <= trace.keys() and not _TRACE_MARKS.isdisjoint(trace)


def _parse_items(values: list[Any], name: str) -> Iterator[Record]:
    """Yield the runs of traces, pages and rows; rows of one trace are one run."""
    rows: dict[str, list[Any]] = {}
    for value in values:
        node = JsonNode.from_value(value)
        if "data" in node and "id" not in node:
            for index, item in enumerate(node.items("data")):
                if _is_observation(item):
                    rows.setdefault(_read_trace_id(item), []).append(item)
                else:
                    yield from _parse_items([item], f"{name}#{index}")
        elif _is_observation(value) and "observations" not in node:
            rows.setdefault(_read_trace_id(value), []).append(value)
        else:
            trace = node.node("trace") if "trace" in node else node
            observations = node.items_or("observations") or trace.items_or("observations")
            yield _build_record(JsonNode(_camelize(trace.data), trace.path), observations, name)
    for trace_id, observations in rows.items():
        first = _camelize(observations[0])
        facts = {key: first[key] for key in _TRACE_FIELDS[1:] if first.get(key)}
        yield _build_record(
            JsonNode({"id": trace_id, "name": first.get("traceName"), **facts}), observations, name
        )


def _read_trace_id(row: Mapping[str, Any]) -> str:
    return flatten_text(row.get("traceId", row.get("trace_id")))


def _build_record(trace: JsonNode, observations: list[Any], name: str) -> Record:
    nodes = [JsonNode(_camelize(node.data), node.path) for node in wrap_nodes(observations, "observations")]
    spans = [_parse_observation(node, index) for index, node in enumerate(nodes, start=1)]
    if not spans or all("input.value" not in span.attributes for span in spans):
        # Some integrations write content to the trace only.
        spans = [_parse_trace_span(trace), *spans]
    facts = {key: trace.raw(key) for key in _TRACE_FIELDS if trace.raw(key) not in (None, [], "")}
    metadata = decode_value(trace.raw("metadata"))
    if isinstance(metadata, Mapping) and (
        rest := {key: item for key, item in metadata.items() if key != "attributes"}
    ):
        facts["metadata"] = rest
    trajectory = SpanTrajectoryBuilder(spans).build_trajectory(
        id=trace.scalar_or("id") or name, format=Langfuse.name, extra=facts
    )
    trajectory = add_run_totals(trajectory, [parse_usage({"totalCost": trace.raw("totalCost")})])
    judgements: dict[str, Any] = {
        key: trace.raw(key) for key in _JUDGEMENTS if trace.raw(key) not in (None, [], {})
    }
    by_observation = {
        node.scalar("id"): found
        for node in nodes
        if (found := {key: node.raw(key) for key in _JUDGEMENTS if node.raw(key) not in (None, [], {})})
    }
    if by_observation:
        judgements["observations"] = by_observation
    group = normalize_group_key(trajectory.task) or None
    return Record(trajectory=trajectory, annotation=Annotation(group=group, extra=judgements))


def _parse_trace_span(trace: JsonNode) -> SourceSpan:
    start = trace.timestamp_or("timestamp")
    latency = trace.raw("latency")
    is_duration = isinstance(latency, int | float) and not isinstance(latency, bool) and latency > 0
    return SourceSpan(
        id=_ROOT_ID,
        parent=None,
        name=trace.text_or("name"),
        position=0,
        start=start,
        end=start + float(latency) if start is not None and is_duration else None,
        attributes=_read_values(trace),
    )


def _parse_observation(node: JsonNode, position: int) -> SourceSpan:
    level = node.text_or("level")
    status = node.raw("statusMessage")
    return SourceSpan(
        id=node.scalar("id"),
        parent=node.scalar_or("parentObservationId") or None,
        name=node.text_or("name"),
        position=position,
        start=node.timestamp_or("startTime"),
        end=node.timestamp_or("endTime"),
        attributes=_collect_attributes(node),
        error=True if level == "ERROR" else None,
        status=flatten_text(status),
        extra={"level": level} if level not in ("", "DEFAULT", "DEBUG", "ERROR") else {},
    )


def _collect_attributes(node: JsonNode) -> dict[str, Any]:
    """Return the attributes of an OpenTelemetry span with the same content.

    Langfuse keeps attributes of spans that it received over OpenTelemetry under ``metadata.attributes``.
    """
    metadata = decode_value(node.raw("metadata"))
    metadata = metadata if isinstance(metadata, Mapping) else {}
    recorded = decode_value(metadata.get("attributes"))
    attributes: dict[str, Any] = dict(recorded) if isinstance(recorded, Mapping) else {}
    attributes |= {"langfuse.metadata": rest} if (rest := _drop_transport(metadata)) else {}
    if kind := _KINDS.get(node.text_or("type")):
        attributes["openinference.span.kind"] = kind
    for key in ("model", "providedModelName"):
        if isinstance(node.raw(key), str):
            attributes.setdefault("gen_ai.response.model", node.raw(key))
    if "toolDefinitions" in node:
        attributes.setdefault("gen_ai.tool.definitions", _parse_definitions(node.raw("toolDefinitions")))
    attributes |= _read_values(node)
    attributes |= _read_usage(node)
    return {key: item for key, item in attributes.items() if item not in (None, "", {}, [])}


def _drop_transport(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: item
        for key, item in metadata.items()
        if key not in ("attributes", "resourceAttributes", "scope")
    }


def _read_values(node: JsonNode) -> dict[str, Any]:
    values = {
        "input.value": decode_value(node.raw("input")),
        "output.value": decode_value(node.raw("output")),
    }
    return {key: item for key, item in values.items() if item not in (None, "")}


def _read_usage(node: JsonNode) -> dict[str, Any]:
    usage = parse_usage(decode_value(node.raw("usageDetails"))) or parse_usage(node.raw("usage"))
    costs = decode_value(node.raw("costDetails"))
    totals = (costs.get("total") if isinstance(costs, Mapping) else None, node.raw("totalCost"))
    cost = next((item for item in (*totals, node.raw("calculatedTotalCost")) if item), None)
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens if usage else None,
        "gen_ai.usage.output_tokens": usage.completion_tokens if usage else None,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens if usage else None,
        "gen_ai.usage.cost": cost if isinstance(cost, int | float) else None,
    }


def _parse_definitions(value: Any) -> list[Any]:
    """Return tool definitions; Langfuse writes an object of name to JSON text."""
    definitions = decode_value(value)
    if not isinstance(definitions, Mapping):
        return definitions if isinstance(definitions, list) else []
    decoded = ((name, decode_value(text)) for name, text in definitions.items())
    return [{"name": name, **item} for name, item in decoded if isinstance(item, Mapping)]


def _camelize(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with the names of the API; blob storage exports write names in snake case."""
    return {re.sub(r"_([a-z])", lambda match: match[1].upper(), key): item for key, item in value.items()}


FORMAT = Langfuse()
