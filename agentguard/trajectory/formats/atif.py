"""Agent Trajectory Interchange Format (ATIF) 1.7 and 1.8, read and written.

What of a run has no place in ATIF (speakers, modules, whether an observation is an error, branches, the
annotation) is written under ``extra.agentguard`` of the object it belongs to. What goes there is found by
reading back what was written and comparing, so a run comes back as it was by construction. Embedded
sub-agent trajectories are kept in ``extra`` as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentguard.errors import FormatError
from agentguard.trajectory.codec import (
    decode_annotation,
    decode_meta,
    decode_step,
    encode_annotation,
    encode_meta,
    encode_step,
)
from agentguard.trajectory.formats._atif_step import amended, difference, read_step, write_step
from agentguard.trajectory.formats._chat import tool_specs
from agentguard.trajectory.formats._chat_dump import chat_tools
from agentguard.trajectory.formats._fields import Node
from agentguard.trajectory.formats._judged import failed, part
from agentguard.trajectory.model import Annotation, Branch, Record, Source, Step, Trajectory

_VERSION = "ATIF-v1.8"
_OURS = "agentguard"
_NO_NAME = "\0"  # What a reader falls back to is not known here, so an empty id is written as ours.
_KEPT = (
    *("schema_version", "session_id", "notes"),
    *("final_metrics", "continued_trajectory_ref", "subagent_trajectories"),
)


class Atif:
    """Importer and exporter of ATIF."""

    name = "atif"
    summary = "Agent Trajectory Interchange Format 1.7/1.8, read and written"

    def recognises(self, value: Any) -> float:
        """By ``schema_version``; older writers leave it out."""
        if not isinstance(value, dict) or not isinstance(value.get("steps"), list):
            return 0.0
        if str(value.get("schema_version", "")).startswith("ATIF-"):
            return 1.0
        steps = value["steps"][:4]
        alike = all(isinstance(step, dict) and {"step_id", "source"} <= step.keys() for step in steps)
        return 0.7 if steps and alike and "agent" in value else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the one run of a document. Raises FormatError with the field."""
        node = Node.of(value)
        version = node.text_or("schema_version", _VERSION)
        if not version.startswith("ATIF-v1."):
            raise node.error("schema_version", "not a version 1 of ATIF", hint="this reads ATIF-v1.x")
        ours = node.node_or("extra").node_or(_OURS)
        steps = tuple(_step(i, one, node) for i, one in enumerate(node.nodes("steps")))
        meta, judged = _meta(node, steps, name)
        run = decode_meta(Node(amended(meta, ours.node_or("trajectory").data), _OURS))
        annotation = Annotation(failed=failed(judged), extra=judged)
        if "annotation" in ours:
            annotation = decode_annotation(ours.node("annotation"))
        branches = tuple(_read_branch(one) for one in ours.nodes_or("branches"))
        yield Record(trajectory=_with(run, steps, branches), annotation=annotation)

    def dump(self, record: Record, *, annotation: bool = False) -> dict[str, Any]:
        """Return the run as an ATIF document that ATIF's own models accept."""
        run = record.trajectory
        document = _document(run)
        ours: dict[str, Any] = {}
        if run.branches:
            ours["branches"] = [_write_branch(branch) for branch in run.branches]
        if annotation and record.annotation != Annotation():
            ours["annotation"] = encode_annotation(record.annotation)
        node = Node(document)
        steps = tuple(_step(i, one, node) for i, one in enumerate(node.nodes("steps")))
        if lost := difference(encode_meta(run), _meta(node, steps, _NO_NAME)[0]):
            ours["trajectory"] = lost
        if ours:
            document["extra"] = {**document.get("extra", {}), _OURS: ours}
        return document


def _document(run: Trajectory) -> dict[str, Any]:
    own = run.extra if run.format == "atif" else {}
    speakers = (step.agent for step in run.steps if step.source is Source.AGENT)
    agent: dict[str, Any] = {"name": next(speakers, "agent"), "version": "unknown"}
    agent |= own["agent"] if isinstance(own.get("agent"), dict) else {}
    if run.tools:
        agent["tool_definitions"] = chat_tools(run.tools)
    document: dict[str, Any] = {"schema_version": _VERSION, "trajectory_id": run.id, "agent": agent}
    document |= {key: own[key] for key in _KEPT if key in own}
    document["steps"] = [
        write_step(step, agent=str(agent["name"]), own=run.format == "atif") for step in run.steps
    ]
    if isinstance(own.get("extra"), dict):
        document["extra"] = dict(own["extra"])
    return document


def _meta(node: Node, steps: tuple[Step, ...], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The encoded head of a document as ATIF alone tells it, and what of it tells how the run was judged."""
    agent = node.node("agent")
    tools = tool_specs(agent.items_or("tool_definitions"), agent.at("tool_definitions"))
    facts = node.rest("trajectory_id", "steps", "agent", "extra")
    facts["agent"] = agent.rest("tool_definitions")
    if rest := node.node_or("extra").rest(_OURS):
        facts["extra"] = rest
    facts, judged = part(facts)
    leading = []
    for step in steps:
        if step.source is not Source.SYSTEM:
            break
        leading.append(step.content)
    run = Trajectory(
        id=node.scalar_or("trajectory_id") or node.scalar_or("session_id") or name,
        format="atif",
        task=next((step.content for step in steps if step.source is Source.USER), ""),
        steps=(),
        tools=tools,
        system_prompts={"": "\n\n".join(leading)} if leading else {},
        extra=facts,
    )
    return encode_meta(run), judged


def _step(index: int, node: Node, document: Node) -> Step:
    if node.integer("step_id") != index + 1:
        raise node.error("step_id", f"expected {index + 1}", hint="steps are numbered from 1 without gaps")
    data = read_step(index, node, agent=document.node("agent").text("name"))
    step = decode_step(Node(data, node.path))
    if step.index != index:
        raise FormatError(f"expected step {index}", field=node.at("extra"))
    return step


def _with(run: Trajectory, steps: tuple[Step, ...], branches: tuple[Branch, ...]) -> Trajectory:
    return Trajectory(
        id=run.id,
        format=run.format,
        task=run.task,
        steps=steps,
        tools=run.tools,
        system_prompts=run.system_prompts,
        branches=branches,
        extra=run.extra,
    )


def _write_branch(branch: Branch) -> dict[str, Any]:
    data: dict[str, Any] = {"id": branch.id, "fork_step": branch.fork_step, "parent": branch.parent}
    data |= {"reason": branch.reason, "extra": dict(branch.extra)}
    return data | {"steps": [encode_step(step) for step in branch.steps]}


def _read_branch(node: Node) -> Branch:
    return Branch(
        id=node.text("id"),
        fork_step=node.integer("fork_step"),
        steps=tuple(decode_step(one) for one in node.nodes("steps")),
        parent=node.text("parent") if "parent" in node else None,
        reason=node.text_or("reason"),
        extra=node.node_or("extra").data,
    )


FORMAT = Atif()
