"""LangSmith runs: JSON Lines, pages of ``/runs/query``, run trees with ``child_runs``, ingestion batches.

Source: ``langsmith.schemas.Run``. The runs of a trace form a tree by ``parent_run_id``, in the order of
``dotted_order``. Every ancestor repeats the messages of its model calls; each message counts once. Feedback
is an annotation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentguard.errors import InputError
from agentguard.trajectory.formats._otel.message_search import decode_value
from agentguard.trajectory.formats._otel.spans import SourceSpan
from agentguard.trajectory.formats._otel.steps import SpanTrajectoryBuilder
from agentguard.trajectory.formats.base import SourceItem, UnreadableRecord
from agentguard.trajectory.grouping import normalize_group_key
from agentguard.trajectory.json_node import JsonNode, parse_timestamp
from agentguard.trajectory.model import Annotation, Record, Usage
from agentguard.trajectory.usage import parse_usage

_KINDS = {"llm": "LLM", "tool": "TOOL", "retriever": "RETRIEVER"}
_RUN_MARKS = frozenset({"trace_id", "dotted_order", "parent_run_id", "child_runs", "session_id"})
_JUDGEMENTS = ("feedback_stats", "reference_example_id", "reference_outputs", "feedback")
_USAGE_FIELDS = ("usage_metadata", "usage", "token_usage")
_STAMP = re.compile(r"(\d{8}T\d{6})(\d{6})Z[^.]*\Z")


class LangSmith:
    """Importer of LangSmith traces."""

    name = "langsmith"
    summary = "LangSmith runs (JSON Lines, API pages, run trees)"

    def score_match(self, value: Any) -> float:
        """Return a positive score for a run, a page of runs, or a batch for ingestion."""
        if not isinstance(value, Mapping):
            return 0.0
        if "run_type" in value and not _RUN_MARKS.isdisjoint(value):
            return 0.97
        rows: list[Any] = next(
            (value[key] for key in ("runs", "post") if isinstance(value.get(key), list)), []
        )
        return max((self.score_match(row) for row in rows[:3]), default=0.0)

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the runs of a trace, a page or a batch."""
        yield from _build_records(list(_flatten(JsonNode.from_value(value))), name)

    def parse_sequence(
        self, items: Iterator[SourceItem], *, name: str
    ) -> Iterator[Record | UnreadableRecord]:
        """Yield a run for each trace; the rows of traces may be in any order."""
        nodes: list[JsonNode] = []
        for item in items:
            try:
                rows = list(_flatten(JsonNode.from_value(item.read())))
                for row in rows:
                    _parse_run(row, 0)
                nodes += rows
            except InputError as error:
                yield UnreadableRecord(error=error.with_location(record=item.position))
        yield from _build_records(nodes, name)


def _flatten(node: JsonNode) -> Iterator[JsonNode]:
    """Yield the runs of a page, a batch or a tree as objects without children."""
    if "run_type" in node or "dotted_order" in node:
        children = node.nodes_or("child_runs")
        yield JsonNode(node.extra_fields("child_runs"), node.path)
        for child in children:
            yield from _flatten(
                JsonNode(
                    {"parent_run_id": node.raw("id"), "trace_id": _get_trace_id(node), **child.data},
                    child.path,
                )
            )
    elif "post" in node or "patch" in node:
        yield from _merge_batch(node)
    else:
        for run in node.nodes("runs"):
            yield from _flatten(run)


def _merge_batch(node: JsonNode) -> Iterator[JsonNode]:
    """Yield the runs of an ingestion batch; a patch has the fields that are known at the end of a run."""
    patches = list(node.nodes_or("patch"))
    patch_by_order = {patch.text_or("dotted_order"): patch.data for patch in patches}
    for run in node.nodes_or("post"):
        patch = patch_by_order.pop(run.text_or("dotted_order"), {})
        merged = {**run.data, **{key: item for key, item in patch.items() if item is not None}}
        yield from _flatten(JsonNode(merged, run.path))
    yield from (patch for patch in patches if patch.text_or("dotted_order") in patch_by_order)


def _get_trace_id(node: JsonNode) -> str:
    return node.scalar_or("trace_id") or node.scalar_or("id")


def _build_records(nodes: list[JsonNode], name: str) -> Iterator[Record]:
    traces: dict[str, list[tuple[int, JsonNode]]] = {}
    for position, node in enumerate(nodes):
        traces.setdefault(_get_trace_id(node) or name, []).append((position, node))
    for trace, rows in traces.items():
        yield _build_record(trace, sorted(rows, key=lambda row: row[1].text_or("dotted_order")))


def _build_record(trace: str, rows: list[tuple[int, JsonNode]]) -> Record:
    spans = [_parse_run(node, position) for position, node in rows]
    root = next((node for _, node in rows if "parent_run_id" not in node), rows[0][1])
    metadata = _read_metadata(root)
    facts = {key: root.raw(key) for key in ("name", "session_name", "session_id", "tags") if root.raw(key)}
    if conversation := next(
        (metadata[key] for key in ("thread_id", "session_id", "conversation_id") if metadata.get(key)), None
    ):
        facts["conversation"] = conversation
    trajectory = SpanTrajectoryBuilder(spans).build_trajectory(id=trace, format=LangSmith.name, extra=facts)
    judgements = {
        node.scalar_or("id"): found
        for _, node in rows
        if (found := {key: node.raw(key) for key in _JUDGEMENTS if node.raw(key) not in (None, {}, [])})
    }
    return Record(
        trajectory=trajectory,
        annotation=Annotation(
            group=normalize_group_key(trajectory.task) or None,
            extra={"runs": judgements} if judgements else {},
        ),
    )


def _parse_run(node: JsonNode, position: int) -> SourceSpan:
    error = decode_value(node.raw("error"))
    stamp = _STAMP.search(node.text_or("dotted_order"))
    start = parse_timestamp(f"{stamp[1]}.{stamp[2]}+00:00") if stamp else None
    return SourceSpan(
        id=node.scalar("id"),
        parent=node.scalar_or("parent_run_id") or None,
        name=node.text_or("name"),
        position=position,
        start=start if start is not None else node.timestamp_or("start_time"),
        end=node.timestamp_or("end_time"),
        attributes=_collect_attributes(node),
        error=True if error or node.raw("status") == "error" else None,
        status=error if isinstance(error, str) else "",
    )


def _read_metadata(node: JsonNode) -> Mapping[str, Any]:
    extra = decode_value(node.raw("extra"))
    metadata = extra.get("metadata") if isinstance(extra, Mapping) else None
    return metadata if isinstance(metadata, Mapping) else {}


def _collect_attributes(node: JsonNode) -> dict[str, Any]:
    """Return the attributes of an OpenTelemetry span with the same content."""
    extra, metadata = decode_value(node.raw("extra")), _read_metadata(node)
    extra = extra if isinstance(extra, Mapping) else {}
    parameters = extra.get("invocation_params")
    parameters = parameters if isinstance(parameters, Mapping) else {}
    inputs, outputs = decode_value(node.raw("inputs")), decode_value(node.raw("outputs"))
    usage = _find_usage(node, outputs, metadata)
    models = (metadata.get("ls_model_name"), parameters.get("model"), parameters.get("model_name"))
    tools = (parameters.get("tools"), inputs.get("tools") if isinstance(inputs, Mapping) else None)
    is_llm = node.text_or("run_type") == "llm"
    agents = (metadata.get("lc_agent_name"), metadata.get("langgraph_node")) if is_llm else ()
    attributes = {
        "openinference.span.kind": _KINDS.get(node.text_or("run_type"), "CHAIN"),
        "gen_ai.agent.name": next((name for name in agents if isinstance(name, str)), None),
        "gen_ai.request.model": next((name for name in models if isinstance(name, str)), None),
        "gen_ai.tool.definitions": next((one for one in tools if isinstance(one, list)), None),
        "gen_ai.tool.call.id": extra.get("tool_call_id"),
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.cost": usage.cost_usd,
        "input.value": _unwrap(inputs, "input"),
        "output.value": _unwrap(outputs, "output"),
        "tool.name": node.text_or("name") if node.raw("run_type") == "tool" else None,
        "langsmith.metadata": {key: item for key, item in metadata.items() if key not in _USAGE_FIELDS},
    }
    return {key: item for key, item in attributes.items() if item not in (None, "", {}, [])}


def _unwrap(value: Any, key: str) -> Any:
    """Return the value in inputs or outputs of a function that takes or returns no object."""
    if isinstance(value, Mapping) and len(value) == 1 and key in value:
        return decode_value(value[key])
    return value


def _find_usage(node: JsonNode, outputs: Any, metadata: Mapping[str, Any]) -> Usage:
    outputs = outputs if isinstance(outputs, Mapping) else {}
    llm_output = outputs.get("llm_output")
    sources = (outputs, metadata, llm_output if isinstance(llm_output, Mapping) else {})
    own = {"prompt_tokens": node.raw("prompt_tokens"), "completion_tokens": node.raw("completion_tokens")}
    found = (parse_usage(source.get(key)) for source in sources for key in _USAGE_FIELDS)
    usage = next(filter(None, found), None) or parse_usage(own) or Usage()
    cost = decode_value(node.raw("total_cost"))
    dollars = _parse_number(cost)
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        cost_usd=usage.cost_usd if dollars is None else dollars,
    )


def _parse_number(value: Any) -> float | None:
    """Return a cost, which the API writes as text."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}(\.\d{1,18})?(E-\d{1,2})?", value):
        return float(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


FORMAT = LangSmith()
