"""SWE-agent ``.traj`` files: thought, action, observation and state of each step.

Source: SWE-agent (arXiv 2405.15793). ``{trajectory: [{thought, action, observation, state, response, ...}],
history: [{role, content, agent, is_demo, ...}], info: {exit_status, submission, model_stats, ...}}``. One
entry of ``trajectory`` is one step; the task and the system prompt are in ``history``. The exit status and
the submission are facts of the run. Fields that judge the result (``resolved``, ``score``, test reports) go
to the annotation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentguard.trajectory._json_node import JsonNode
from agentguard.trajectory.formats._action_text import parse_action_text
from agentguard.trajectory.formats._chat_messages import parse_tool_call
from agentguard.trajectory.formats._otel.spans import flatten_text
from agentguard.trajectory.grouping import normalize_group_key
from agentguard.trajectory.model import Annotation, Observation, Record, Source, Step, ToolCall, Trajectory

_ENTRY_FIELDS = ("thought", "action", "observation", "tool_calls")
_VERDICT_FIELDS = ("resolved", "target", "success", "score")
_EVALUATION_FIELDS = (
    *_VERDICT_FIELDS,
    *("eval_logs", "report", "test_result", "test_results", "test_output", "patch", "test_patch"),
    *("FAIL_TO_PASS", "PASS_TO_PASS"),
)


class SweAgent:
    """SWE-agent trajectories."""

    name = "swe_agent"
    summary = "SWE-agent .traj files"

    def score_match(self, value: Any) -> float:
        """Score a ``trajectory`` of entries with an action and an observation."""
        steps = value.get("trajectory") if isinstance(value, Mapping) else None
        if not isinstance(steps, list):
            return 0.0
        has_step_fields = [
            isinstance(step, Mapping) and "action" in step and "observation" in step for step in steps
        ]
        if not has_step_fields:
            return 0.5 if "history" in value and "info" in value else 0.0
        return 0.9 if all(has_step_fields) else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of a file. Raises FormatError with the field."""
        record = JsonNode.from_value(value)
        info = record.node_or("info")
        history = list(record.nodes_or("history"))
        agent = next((m.text_or("agent") for m in history if m.raw("role") == "assistant"), "") or "agent"
        extra = record.extra_fields("trajectory", "info", "instance_id", *_EVALUATION_FIELDS)
        info_extra = info.extra_fields(*_EVALUATION_FIELDS)
        trajectory = Trajectory(
            id=record.scalar_or("instance_id", name),
            format=self.name,
            task=_find_message(history, "user"),
            steps=tuple(_build_step(i, entry, agent) for i, entry in enumerate(record.nodes("trajectory"))),
            system_prompts=_build_system_prompts(history, agent),
            extra={**extra, **({"info": info_extra} if info_extra else {})},
        )
        yield Record(trajectory=trajectory, annotation=_build_annotation(record, info, trajectory))


def _build_step(index: int, entry: JsonNode, agent: str) -> Step:
    calls = tuple(_build_calls(index, entry))
    observations: tuple[Observation, ...] = ()
    if "observation" in entry:
        last_call = calls[-1] if calls else None
        content = flatten_text(entry.raw("observation"))
        observations = (
            Observation(
                content=content,
                call_id=last_call.id if last_call else None,
                tool=last_call.name if last_call else None,
            ),
        )
    return Step(
        index=index,
        source=Source.AGENT,
        agent=agent,
        content=flatten_text(entry.raw("thought")) or flatten_text(entry.raw("response")),
        tool_calls=calls,
        observations=observations,
        source_index=index,
        extra=entry.extra_fields(*_ENTRY_FIELDS),
    )


def _build_calls(index: int, entry: JsonNode) -> Iterator[ToolCall]:
    """Yield the action as a tool call: the recorded call of the model, else the command line."""
    recorded = list(entry.nodes_or("tool_calls"))
    for number, recorded_call in enumerate(recorded):
        yield parse_tool_call(recorded_call, fallback_id=f"call_{index}_{number}")
    if not recorded:
        call = parse_action_text(entry.text_or("action"), id=f"call_{index}", default="bash")
        if call is not None:
            yield call


def _find_message(history: list[JsonNode], role: str) -> str:
    """Return the first message of a role that is not part of a demonstration."""
    messages = (message for message in history if message.raw("role") == role and not message.raw("is_demo"))
    return next((flatten_text(message.raw("content")) for message in messages), "")


def _build_system_prompts(history: list[JsonNode], agent: str) -> dict[str, str]:
    prompt = _find_message(history, "system")
    return {agent: prompt} if prompt else {}


def _build_annotation(record: JsonNode, info: JsonNode, trajectory: Trajectory) -> Annotation:
    evaluation = {key: node.raw(key) for node in (info, record) for key in _EVALUATION_FIELDS if key in node}
    verdict = next((evaluation[key] for key in _VERDICT_FIELDS if key in evaluation), None)
    is_failed = None
    if isinstance(verdict, (bool, int, float)) and verdict in (0, 1):  # a score between 0 and 1 is ambiguous
        is_failed = verdict == 0
    return Annotation(failed=is_failed, group=normalize_group_key(trajectory.task) or None, extra=evaluation)


FORMAT = SweAgent()
