"""SWE-agent ``.traj`` files: thought, action, observation and state of each step.

Source: SWE-agent (arXiv 2405.15793). ``{trajectory: [{thought, action, observation, state, response, ...}],
history: [{role, content, agent, is_demo, tool_calls, ...}], info: {exit_status, submission, model_stats,
...}}``. One entry of ``trajectory`` is one step; the task, the system prompt and the calls of the model are
in ``history``. A file with only a ``history`` (a demonstration) has a step for each answer. An entry without
recorded calls has its action as a call (``_action_parser.py``). The fields ``query`` and ``messages`` of an
entry repeat the history and are omitted. Fields that judge the result (``resolved``, ``score``, test reports)
are in the annotation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentguard.trajectory.formats._action_parser import find_declared_commands, parse_shell_action
from agentguard.trajectory.formats._chat_messages import parse_tool_call
from agentguard.trajectory.formats._content_parts import flatten_text, parse_content
from agentguard.trajectory.grouping import normalize_group_key
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Annotation, Observation, Record, Source, Step, ToolCall, Trajectory
from agentguard.trajectory.usage import add_run_totals, parse_usage

_ENTRY_FIELDS = ("thought", "action", "observation", "tool_calls", "query", "messages", "content", "role")
_VERDICT_FIELDS = ("resolved", "target", "success", "score")
_EVALUATION_FIELDS = (
    *_VERDICT_FIELDS,
    *("eval_logs", "report", "test_result", "test_results", "test_output", "patch", "test_patch"),
    *("FAIL_TO_PASS", "PASS_TO_PASS"),
)


class SweAgent:
    """Importer of SWE-agent's trajectories."""

    name = "swe_agent"
    summary = "SWE-agent .traj files"

    def score_match(self, value: Any) -> float:
        """Return a positive score for a ``trajectory`` of actions and observations, or a ``history``."""
        steps = value.get("trajectory") if isinstance(value, Mapping) else None
        if isinstance(value, Mapping) and "trajectory" not in value:
            return 0.9 if _is_history(value.get("history")) else 0.0
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
        history = [one for one in record.nodes_or("history") if not one.raw("is_demo")]
        agent = next((m.text_or("agent") for m in history if m.raw("role") == "assistant"), "") or "agent"
        prompt = _find_message(history, "system")
        if "trajectory" in record or "history" not in record:
            entries = _join_calls(list(record.nodes("trajectory")), history)
        else:
            entries = _collect_entries(history)
        commands = find_declared_commands(prompt)
        extra = record.extra_fields("trajectory", "history", "info", "instance_id", *_EVALUATION_FIELDS)
        info_extra = info.extra_fields("exit_status", *_EVALUATION_FIELDS)
        trajectory = Trajectory(
            id=record.scalar_or("instance_id", name),
            format=self.name,
            task=_find_message(history, "user"),
            steps=tuple(_build_step(i, entry, agent, commands) for i, entry in enumerate(entries)),
            system_prompts={agent: prompt} if prompt else {},
            exit_status=info.text_or("exit_status") or None,
            extra={**extra, **({"info": info_extra} if info_extra else {})},
        )
        annotation = _build_annotation(record, info, trajectory)
        totals = [parse_usage(_select_totals(info.raw("model_stats")))]
        yield Record(trajectory=add_run_totals(trajectory, totals), annotation=annotation)


def _select_totals(model_stats: Any) -> Any:
    """Return the totals of the run; ``total_cost`` is the cost of all runs of the process."""
    if not isinstance(model_stats, Mapping):
        return None
    return {key: value for key, value in model_stats.items() if key != "total_cost"}


def _is_history(value: Any) -> bool:
    """Return True if a value has messages with the agent's name and at least one with an action."""
    if not isinstance(value, list) or not all(isinstance(one, Mapping) and "agent" in one for one in value):
        return False
    return any("action" in message for message in value)


def _join_calls(entries: list[JsonNode], history: Sequence[JsonNode]) -> list[JsonNode]:
    """Return the entries with the calls and the reasoning of their messages.

    An answer that the harness rejected, or the last one, may not be part of the history.
    """
    answers = [message for message in history if message.raw("role") == "assistant"]
    joined, position = [], 0
    for entry in entries:
        action = flatten_text(entry.raw("action")).strip()
        found = (i for i in range(position, len(answers)) if _read_action(answers[i]) == action)
        if (index := next(found, None)) is not None:
            position = index + 1
            known = {key: answers[index].raw(key) for key in ("tool_calls", "thinking_blocks")}
            entry = JsonNode({**known, **entry.data}, entry.path)
        joined.append(entry)
    return joined


def _read_action(message: JsonNode) -> str:
    return flatten_text(message.raw("action")).strip()


def _collect_entries(history: Sequence[JsonNode]) -> list[JsonNode]:
    """Return an entry for each answer; the messages up to the next answer are its observation."""
    entries: list[JsonNode] = []
    for message in history:
        if message.raw("role") == "assistant":
            entries.append(JsonNode({**message.data, "response": message.raw("content")}, message.path))
        elif entries:
            texts = (
                flatten_text(value) for value in (entries[-1].raw("observation"), message.raw("content"))
            )
            data = {**entries[-1].data, "observation": "\n".join(filter(None, texts))}
            entries[-1] = JsonNode(data, entries[-1].path)
    return entries


def _build_step(index: int, entry: JsonNode, agent: str, commands: frozenset[str]) -> Step:
    calls = tuple(_build_calls(index, entry, commands))
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
    thinking = parse_content(entry.raw("thinking_blocks"), entry.field_path("thinking_blocks"))
    return Step(
        index=index,
        source=Source.AGENT,
        agent=agent,
        content=flatten_text(entry.raw("thought")) or flatten_text(entry.raw("response")),
        reasoning="\n".join(filter(None, thinking.reasoning)),
        tool_calls=calls,
        observations=observations,
        source_index=index,
        extra=entry.extra_fields(*_ENTRY_FIELDS, "agent", "message_type", "thinking_blocks"),
    )


def _build_calls(index: int, entry: JsonNode, commands: frozenset[str]) -> Iterator[ToolCall]:
    """Yield the action as a tool call: the recorded call of the model, else the command line."""
    recorded = list(entry.nodes_or("tool_calls"))
    for number, recorded_call in enumerate(recorded):
        yield parse_tool_call(recorded_call, fallback_id=f"call_{index}_{number}")
    if not recorded:
        call = parse_shell_action(entry.text_or("action"), id=f"call_{index}", commands=commands)
        if call is not None:
            yield call


def _find_message(history: Sequence[JsonNode], role: str) -> str:
    """Return the first message of a role."""
    messages = (message for message in history if message.raw("role") == role)
    return next((flatten_text(message.raw("content")) for message in messages), "")


def _build_annotation(record: JsonNode, info: JsonNode, trajectory: Trajectory) -> Annotation:
    evaluation = {key: node.raw(key) for node in (info, record) for key in _EVALUATION_FIELDS if key in node}
    verdict = next((evaluation[key] for key in _VERDICT_FIELDS if key in evaluation), None)
    is_failed = None
    if isinstance(verdict, (bool, int, float)) and verdict in (0, 1):  # a score between 0 and 1 is ambiguous
        is_failed = verdict == 0
    return Annotation(failed=is_failed, group=normalize_group_key(trajectory.task) or None, extra=evaluation)


FORMAT = SweAgent()
