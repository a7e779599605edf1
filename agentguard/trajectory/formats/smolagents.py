"""smolagents memory: the list of `agent.memory.get_full_steps()`, or the dictionary of a `RunResult`.

An action step is one turn: the model's text, its tool calls or its code, and the observations. A code action
is a call of ``python_interpreter``. The error of a step is the error of its call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentguard.trajectory.formats._chat_messages import parse_tool_call
from agentguard.trajectory.formats._content_parts import parse_content
from agentguard.trajectory.formats._step_builder import StepBuilder, collect_system_prompts
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Record, Source, ToolCall
from agentguard.trajectory.safe_json import dumps
from agentguard.trajectory.usage import parse_usage

_CODE_TOOL = "python_interpreter"
_ACTION_FIELDS = frozenset({"step_number", "tool_calls", "observations", "model_output"})
_MIN_ACTION_FIELDS = 3
_MAPPED_FIELDS = (
    *("step_number", "timing", "tool_calls", "error", "model_output", "model_output_message", "observations"),
    *("action_output", "token_usage", "code_action", "model_input_messages", "is_final_answer"),
    "observations_images",
)


class Smolagents:
    """Importer of smolagents' memory."""

    name = "smolagents"
    summary = "smolagents memory steps (get_full_steps) and run results"

    def score_match(self, value: Any) -> float:
        """Return a positive score for a list with action steps, alone or under ``steps``."""
        steps = value.get("steps") if isinstance(value, dict) else value
        if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps[:8]):
            return 0.0
        return 0.96 if any(map(_is_action, steps[:8])) else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of a list of steps."""
        node = JsonNode({"steps": value}) if isinstance(value, list) else JsonNode.from_value(value)
        builder = StepBuilder(agent="agent")
        steps = list(node.nodes("steps"))
        for index, step in enumerate(steps):
            _add_step(builder, step, index)
        run = builder.build_trajectory(
            name,
            self.name,
            system_prompts=_find_system_prompts(builder, steps),
            exit_status=node.text_or("state") or None,
            extra=node.extra_fields("steps", "state"),
        )
        yield Record(trajectory=run)


def _is_action(step: dict[str, Any]) -> bool:
    return "step_number" in step and len(_ACTION_FIELDS & step.keys()) >= _MIN_ACTION_FIELDS


def _add_step(builder: StepBuilder, step: JsonNode, index: int) -> None:
    if "task" in step:
        builder.add_turn(
            step.text("task"),
            source=Source.USER,
            source_index=index,
            unknown_parts=["image"] * len(step.items_or("task_images")),
        )
    elif "system_prompt" in step:
        builder.add_turn(step.text("system_prompt"), source=Source.SYSTEM, source_index=index)
    elif "step_number" in step:
        _add_action(builder, step, index)
    elif "plan" in step:
        timing = step.node_or("timing")
        builder.add_turn(
            step.text("plan"),
            source_index=index,
            started_at=timing.timestamp_or("start_time"),
            ended_at=timing.timestamp_or("end_time"),
            usage=parse_usage(step.raw("token_usage")),
            extra={"plan": True},
        )
    elif "output" not in step:  # The final answer repeats the output of the last action.
        builder.add_unknown("memory step")


def _add_action(builder: StepBuilder, step: JsonNode, index: int) -> None:
    timing, error = step.node_or("timing"), step.raw("error")
    calls = [
        parse_tool_call(node, fallback_id=f"call-{index}-{place}")
        for place, node in enumerate(_find_calls(step))
    ]
    code = step.text_or("code_action")
    if code and not calls:
        calls = [ToolCall(id=f"call-{index}", name=_CODE_TOOL, arguments={"code": code})]
    # At the limit of steps, smolagents asks for an answer and records it as the output of an action.
    key = "action_output" if step.raw("model_output") is None and not calls else "model_output"
    content = parse_content(step.raw(key), step.field_path(key))
    builder.add_turn(
        content.text,
        tool_calls=calls,
        source_index=index,
        started_at=timing.timestamp_or("start_time"),
        ended_at=timing.timestamp_or("end_time"),
        usage=parse_usage(step.raw("token_usage")),
        unknown_parts=[*content.unknown_parts, *["image"] * len(step.items_or("observations_images"))],
        extra=step.extra_fields(*_MAPPED_FIELDS),
    )
    observation = step.text_or("observations")
    if isinstance(error, dict):
        message = JsonNode(error, step.field_path("error")).text_or("message")
        text = "\n".join(filter(None, [observation, message]))
        builder.add_result(text, call_id=calls[-1].id if calls else None, is_error=True, source_index=index)
    elif observation or calls:
        output = step.raw("action_output")
        text = observation or (output if isinstance(output, str) else dumps(output).decode())
        # The recording has one observation for all calls of the step.
        builder.add_result(text, call_id=calls[-1].id if calls else None, source_index=index)


def _find_calls(step: JsonNode) -> Iterator[JsonNode]:
    """Yield the calls of a step; a call that failed is recorded in the model's message alone."""
    if step.items_or("tool_calls"):
        return step.nodes("tool_calls")
    message = step.raw("model_output_message")
    return (
        JsonNode.from_value(message, step.path).nodes_or("tool_calls")
        if isinstance(message, dict)
        else iter(())
    )


def _find_system_prompts(builder: StepBuilder, steps: list[JsonNode]) -> dict[str, str]:
    """Return the system prompt: a step, or the first message that the model read."""
    if prompts := collect_system_prompts(builder.steps):
        return prompts
    for step in steps:
        for message in step.nodes_or("model_input_messages"):
            if message.raw("role") == "system":
                return {"": parse_content(message.raw("content"), message.field_path("content")).text}
    return {}


FORMAT = Smolagents()
