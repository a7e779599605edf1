"""Agent Trajectory Interchange Format (ATIF) 1.7 and 1.8, read and written.

ATIF has no place for speakers, modules, error flags of observations, branches and the annotation. The writer
puts them into ``extra.agentguard`` of the same object. It reads its output back and stores the differences,
so a round trip is lossless by construction. Embedded sub-agent trajectories stay in ``extra``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from agentguard.errors import FormatError
from agentguard.trajectory.formats._atif_step import (
    apply_difference,
    compute_difference,
    read_step,
    write_step,
)
from agentguard.trajectory.formats._chat_messages import parse_tool_specs
from agentguard.trajectory.formats._chat_writer import build_chat_tools
from agentguard.trajectory.formats._label_fields import infer_failed, split_labels
from agentguard.trajectory.formats._step_builder import collect_system_prompts, count_unknown_parts
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Annotation, Branch, Record, Source, Step, Trajectory
from agentguard.trajectory.serialization import (
    decode_annotation,
    decode_meta,
    decode_step,
    encode_annotation,
    encode_meta,
    encode_step,
)
from agentguard.trajectory.usage import add_run_totals, parse_usage

_VERSION = "ATIF-v1.8"
_OWN_EXTRA_KEY = "agentguard"
# The reader's default id of a run is unknown here. No run has this one, so that an empty id is a difference.
_UNKNOWN_DEFAULT_ID = "\0"
_PRESERVED_FIELDS = (
    *("schema_version", "session_id", "notes"),
    *("final_metrics", "continued_trajectory_ref", "subagent_trajectories"),
)


class Atif:
    """Importer and exporter of ATIF."""

    name = "atif"
    summary = "Agent Trajectory Interchange Format 1.7/1.8, read and written"

    def score_match(self, value: Any) -> float:
        """Return a score by ``schema_version``, which older writers omit."""
        if not isinstance(value, dict) or not isinstance(value.get("steps"), list):
            return 0.0
        if str(value.get("schema_version", "")).startswith("ATIF-"):
            return 1.0
        steps = value["steps"][:4]
        alike = all(isinstance(step, dict) and {"step_id", "source"} <= step.keys() for step in steps)
        return 0.7 if steps and alike and "agent" in value else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of a document. Raises FormatError with the field."""
        node = JsonNode.from_value(value)
        version = node.text_or("schema_version", _VERSION)
        if not version.startswith("ATIF-v1."):
            raise node.build_error("schema_version", "not a version 1 of ATIF", hint="this reads ATIF-v1.x")
        ours = node.node_or("extra").node_or(_OWN_EXTRA_KEY)
        steps = tuple(_parse_document_step(i, one, node) for i, one in enumerate(node.nodes("steps")))
        meta, judged = _parse_meta(node, steps, name)
        run = decode_meta(JsonNode(apply_difference(meta, ours.node_or("trajectory").data), _OWN_EXTRA_KEY))
        annotation = Annotation(failed=infer_failed(judged), extra=judged)
        if "annotation" in ours:
            annotation = decode_annotation(ours.node("annotation"))
        branches = tuple(_read_branch(one) for one in ours.nodes_or("branches"))
        totals = [parse_usage(node.raw("final_metrics"))]
        run = add_run_totals(replace(run, steps=steps, branches=branches), totals)
        yield Record(trajectory=run, annotation=annotation)

    def dump(self, record: Record, *, annotation: bool = False) -> dict[str, Any]:
        """Return the run as an ATIF document that ATIF's own models accept."""
        run = record.trajectory
        document = _build_document(run)
        ours: dict[str, Any] = {}
        if run.branches:
            ours["branches"] = [_write_branch(branch) for branch in run.branches]
        if annotation and record.annotation != Annotation():
            ours["annotation"] = encode_annotation(record.annotation)
        node = JsonNode(document)
        steps = tuple(
            _parse_document_step(i, step_node, node) for i, step_node in enumerate(node.nodes("steps"))
        )
        if difference := compute_difference(
            encode_meta(run), _parse_meta(node, steps, _UNKNOWN_DEFAULT_ID)[0]
        ):
            ours["trajectory"] = difference
        if ours:
            document["extra"] = {**document.get("extra", {}), _OWN_EXTRA_KEY: ours}
        return document


def _build_document(run: Trajectory) -> dict[str, Any]:
    run_extra = run.extra if run.format == "atif" else {}
    speakers = (step.agent for step in run.steps if step.source is Source.AGENT)
    agent: dict[str, Any] = {"name": next(speakers, "agent"), "version": "unknown"}
    agent |= run_extra["agent"] if isinstance(run_extra.get("agent"), dict) else {}
    if run.tools:
        agent["tool_definitions"] = build_chat_tools(run.tools)
    document: dict[str, Any] = {"schema_version": _VERSION, "trajectory_id": run.id, "agent": agent}
    document |= {key: run_extra[key] for key in _PRESERVED_FIELDS if key in run_extra}
    document["steps"] = [
        write_step(step, agent=str(agent["name"]), restore_extra=run.format == "atif") for step in run.steps
    ]
    if isinstance(run_extra.get("extra"), dict):
        document["extra"] = dict(run_extra["extra"])
    return document


def _parse_meta(node: JsonNode, steps: tuple[Step, ...], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the encoded head of a document and its label fields, both from ATIF fields only."""
    agent = node.node("agent")
    tools = parse_tool_specs(agent.items_or("tool_definitions"), agent.field_path("tool_definitions"))
    facts = node.extra_fields("trajectory_id", "steps", "agent", "extra")
    facts["agent"] = agent.extra_fields("tool_definitions")
    if unmapped_fields := node.node_or("extra").extra_fields(_OWN_EXTRA_KEY):
        facts["extra"] = unmapped_fields
    facts, judged = split_labels(facts)
    run = Trajectory(
        id=node.scalar_or("trajectory_id") or node.scalar_or("session_id") or name,
        format="atif",
        task=next((step.content for step in steps if step.source is Source.USER), ""),
        steps=(),
        tools=tools,
        system_prompts=collect_system_prompts(steps),
        unknown_parts=count_unknown_parts(steps),
        extra=facts,
    )
    return encode_meta(run), judged


def _parse_document_step(index: int, node: JsonNode, document: JsonNode) -> Step:
    if node.integer("step_id") != index + 1:
        raise node.build_error(
            "step_id", f"expected {index + 1}", hint="steps are numbered from 1 without gaps"
        )
    data = read_step(index, node, agent=document.node("agent").text("name"))
    step = decode_step(JsonNode(data, node.path))
    if step.index != index:
        raise FormatError(f"expected step {index}", field=node.field_path("extra"))
    return step


def _write_branch(branch: Branch) -> dict[str, Any]:
    data: dict[str, Any] = {"id": branch.id, "fork_step": branch.fork_step, "parent": branch.parent}
    data |= {"reason": branch.reason, "extra": dict(branch.extra)}
    return data | {"steps": [encode_step(step) for step in branch.steps]}


def _read_branch(node: JsonNode) -> Branch:
    return Branch(
        id=node.text("id"),
        fork_step=node.integer("fork_step"),
        steps=tuple(decode_step(one) for one in node.nodes("steps")),
        parent=node.text("parent") if "parent" in node else None,
        reason=node.text_or("reason"),
        extra=node.node_or("extra").data,
    )


FORMAT = Atif()
