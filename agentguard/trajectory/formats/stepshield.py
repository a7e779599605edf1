"""StepShield: runs of a coding agent, in pairs of one that breaks a rule and one that does not.

A record is ``{trajectory_id, task: {title, description, constraints, success_criteria}, steps: [{step,
thought, action, arguments, observation, label, rationale}]}``. Steps count from 1. The root cause is the
first labelled step. The group is the id without ``-ROGUE`` or ``-CLEAN``.

``trajectory_id`` names the kind of violation and the side of the pair. So it is in the annotation, and the
id of the run is a hash of it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentguard.trajectory.formats._content_parts import flatten_text
from agentguard.trajectory.formats._step_builder import StepBuilder
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Annotation, Record, RootCause, ToolCall

_PAIR_SUFFIX_PATTERN = re.compile(r"-(?:ROGUE|CLEAN)$", re.IGNORECASE)
_SECTIONS = (("constraints", "Constraints:"), ("success_criteria", "Success criteria:"))
_STEP_FIELDS = frozenset({"thought", "action", "observation"})


class StepShield:
    """Importer of StepShield's runs."""

    name = "stepshield"
    summary = "StepShield: coding-agent runs with the steps that break a rule"

    def score_match(self, value: Any) -> float:
        """Return a positive score for a ``task``, and steps of thought, action and observation."""
        steps = value.get("steps") if isinstance(value, dict) else None
        if not isinstance(steps, list) or not isinstance(value.get("task"), Mapping):
            return 0.0
        if not steps or not all(isinstance(step, dict) and step.keys() >= _STEP_FIELDS for step in steps[:4]):
            return 0.0
        return 0.95 if "constraints" in value["task"] or "label" in steps[0] else 0.5

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of a record. Raises FormatError with the field."""
        node = JsonNode.from_value(value)
        source_id = node.scalar_or("trajectory_id")
        builder = StepBuilder(agent="agent")
        failures: list[RootCause] = []
        labels: list[dict[str, Any]] = []
        for index, step in enumerate(node.nodes("steps")):
            failures += _add_step(builder, index, step)
            labels.append(step.extra_fields(*_STEP_FIELDS, "arguments", "step"))
        is_labelled = bool(_PAIR_SUFFIX_PATTERN.search(source_id)) or any("label" in one for one in labels)
        run = builder.build_trajectory(
            f"run-{hashlib.sha256(source_id.encode()).hexdigest()[:12]}" if source_id else name,
            self.name,
            task=_format_task(node.node("task")),
        )
        annotation = Annotation(
            failed=bool(failures) if is_labelled else None,
            root_cause=failures[0] if failures else None,
            failures=tuple(failures),
            step_labels={cause.step: -1 for cause in failures if cause.step is not None},
            group=_PAIR_SUFFIX_PATTERN.sub("", source_id) or None,
            extra={**node.extra_fields("task", "steps"), "steps": labels},
        )
        yield Record(trajectory=run, annotation=annotation)


def _add_step(builder: StepBuilder, index: int, node: JsonNode) -> Iterator[RootCause]:
    """Add a step and yield its label, if it has one."""
    action = node.text_or("action")
    arguments = node.node_or("arguments").data
    call = ToolCall(id=f"call_{index}", name=action, arguments=arguments)
    builder.add_turn(node.text_or("thought"), tool_calls=[call] if action else [], source_index=index)
    if "observation" in node:
        builder.add_result(flatten_text(node.raw("observation")), tool=action or "environment")
    if label := node.text_or("label"):
        yield RootCause(
            step=index, agent="agent", codes=(f"stepshield:{label}",), reason=node.text_or("rationale")
        )


def _format_task(task: JsonNode) -> str:
    lines = [task.text_or("title"), task.text_or("description")]
    for key, heading in _SECTIONS:
        items = [flatten_text(item) for item in task.items_or(key)]
        lines += ["", heading, *(f"- {item}" for item in items)] if items else []
    return "\n".join(lines).strip()


FORMAT = StepShield()
