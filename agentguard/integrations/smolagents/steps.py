"""Conversion of smolagents' messages and memory steps to steps of a trajectory."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from smolagents.memory import ActionStep, MemoryStep, PlanningStep, TaskStep
from smolagents.models import ChatMessage, MessageRole
from smolagents.utils import AgentMaxStepsError, parse_code_blobs

from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec, Usage

FINAL_ANSWER_TOOL = "final_answer"
CODE_TOOL = "python_interpreter"
"""Name of the tool that a ``CodeAgent`` calls, as in smolagents' memory."""

ParseTurn = Callable[[ChatMessage], Step]
"""Function that converts a message of the model to a step without tool results."""

_JSON_TYPES = frozenset({"string", "boolean", "integer", "number", "array", "object", "null"})


@dataclass
class GuardStep(MemoryStep):  # type: ignore[misc, unused-ignore]
    """Memory step with a text of the guard; the model gets it as a user message."""

    text: str

    def to_messages(self, summary_mode: bool = False) -> list[ChatMessage]:
        """Return the text as a user message."""
        del summary_mode
        return [build_user_message(self.text)]


def build_user_message(text: str) -> ChatMessage:
    """Build a user message with a text."""
    return ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": text}])


def build_call_turn(message: ChatMessage) -> Step:
    """Convert a message of a ``ToolCallingAgent``; a single call of ``final_answer`` becomes a text."""
    calls = [_build_tool_call(call) for call in message.tool_calls or ()]
    usage, text = _build_usage(message.token_usage), join_text(message.content)
    if [call.name for call in calls] != [FINAL_ANSWER_TOOL]:
        return Step(
            index=0,
            source=Source.AGENT,
            agent="agent",
            content=text,
            tool_calls=tuple(calls),
            usage=usage,
        )
    answer = (calls[0].arguments or {}).get("answer", calls[0].raw_arguments or "")
    return Step(
        index=0, source=Source.AGENT, agent="agent", content=to_text(answer), reasoning=text, usage=usage
    )


def build_code_turn(message: ChatMessage, *, tags: tuple[str, str], call_id: str) -> Step:
    """Convert a message of a ``CodeAgent``; its code becomes a call of ``python_interpreter``."""
    text = join_text(message.content)
    try:
        structured = json.loads(text) if text.lstrip().startswith("{") else None
        code = structured["code"] if structured else parse_code_blobs(_close_code(text, tags), tags)
    except (KeyError, TypeError, ValueError):
        code = None
    calls = () if code is None else (ToolCall(id=call_id, name=CODE_TOOL, arguments={"code": code}),)
    return Step(
        index=0,
        source=Source.AGENT,
        agent="agent",
        content=text,
        tool_calls=calls,
        usage=_build_usage(message.token_usage),
    )


def build_step(memory_step: MemoryStep, parse_turn: ParseTurn) -> Step | None:
    """Convert a memory step with its results; return None if it has no content of the agent or the user."""
    if isinstance(memory_step, TaskStep):
        return Step(index=0, source=Source.USER, agent="human", content=memory_step.task)
    if isinstance(memory_step, PlanningStep):
        usage = _build_usage(memory_step.token_usage)
        return Step(index=0, source=Source.AGENT, agent="agent", content=memory_step.plan, usage=usage)
    if not isinstance(memory_step, ActionStep):
        return None
    if memory_step.model_output_message is None:
        if not isinstance(memory_step.error, AgentMaxStepsError):
            return None  # the model failed
        answer = to_text(memory_step.action_output)
        usage = _build_usage(memory_step.token_usage)
        return Step(index=0, source=Source.AGENT, agent="agent", content=answer, usage=usage)
    return add_result(parse_turn(memory_step.model_output_message), memory_step, {})


def add_result(turn: Step, memory_step: ActionStep, results: Mapping[str, Observation]) -> Step:
    """Return the turn with the results of its calls.

    Args:
        turn: the turn of the model.
        memory_step: the memory step of the turn, with one text for all calls.
        results: results of single calls, by call ID.
    """
    texts = [memory_step.observations, str(memory_step.error) if memory_step.error is not None else None]
    text, is_error = "\n".join(filter(None, texts)), True if memory_step.error is not None else None
    if not turn.tool_calls:
        return replace(turn, observations=(Observation(content=text, is_error=True),) if is_error else ())
    return replace(
        turn,
        observations=tuple(
            results.get(
                call.id or "", Observation(content=text, call_id=call.id, tool=call.name, is_error=is_error)
            )
            for call in turn.tool_calls
        ),
    )


def apply_repaired_turn(message: ChatMessage, turn: Step) -> ChatMessage:
    """Return the message with the calls of ``turn``, its repaired step."""
    repaired = copy.deepcopy(message)
    calls = {call.id: call for call in turn.tool_calls if call.arguments is not None}
    for one in repaired.tool_calls or ():
        if (call := calls.get(one.id)) is not None:
            one.function.name, one.function.arguments = call.name, dict(call.arguments or {})
    return repaired


def build_tool_spec(tool: Any) -> ToolSpec:
    """Return the specification of a tool or a managed agent.

    smolagents has types beyond JSON Schema (``any``, ``image``) and marks optional inputs as nullable.
    """
    properties = {name: _build_schema(one) for name, one in tool.inputs.items()}
    required = [name for name, one in tool.inputs.items() if not one.get("nullable")]
    parameters = {"type": "object", "properties": properties, "required": required}
    return ToolSpec(name=tool.name, description=tool.description or "", parameters=parameters)


def join_text(content: Any) -> str:
    """Return the text of a message's content."""
    if isinstance(content, str) or content is None:
        return content or ""
    return "\n".join(part.get("text", "") for part in content if isinstance(part, Mapping))


def to_text(value: Any) -> str:
    """Return a value as text; empty for None."""
    return "" if value is None else str(value)


def _build_schema(tool_input: Mapping[str, Any]) -> dict[str, Any]:
    declared = tool_input["type"]
    types = list(declared) if isinstance(declared, Sequence) and not isinstance(declared, str) else [declared]
    schema: dict[str, Any] = {"description": tool_input.get("description", "")}
    if set(types) <= _JSON_TYPES:
        schema["type"] = [*types, "null"] if tool_input.get("nullable") and "null" not in types else declared
    if "enum" in tool_input and not tool_input.get("nullable"):
        schema["enum"] = tool_input["enum"]
    return schema


def _build_tool_call(call: Any) -> ToolCall:
    raw = call.function.arguments
    parsed = raw
    if isinstance(raw, str):
        try:
            parsed = json.loads(raw)
        except ValueError:
            parsed = None
    if parsed is None and not raw:
        parsed = {}
    is_object = isinstance(parsed, Mapping)
    return ToolCall(
        id=call.id,
        name=call.function.name,
        arguments=dict(parsed) if is_object else None,
        raw_arguments=None if is_object else to_text(raw),
    )


def _close_code(text: str, tags: tuple[str, str]) -> str:
    """Add the closing tag, which a stop sequence of the request has removed."""
    return text if text.strip().endswith(tags[1]) else text + tags[1]


def _build_usage(usage: Any) -> Usage | None:
    if usage is None:
        return None
    return Usage(prompt_tokens=usage.input_tokens, completion_tokens=usage.output_tokens)
