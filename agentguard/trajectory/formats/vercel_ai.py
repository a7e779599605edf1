"""Vercel AI SDK: UI messages with ``parts``, as chats store them.

A tool part has the call and its result; its ``state`` shows whether the result is an error. ``step-start``
separates the turns of one message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentguard.trajectory.formats._content_parts import MessageContent, parse_content
from agentguard.trajectory.formats._label_fields import infer_failed, split_labels
from agentguard.trajectory.formats._step_builder import StepBuilder
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Annotation, Record, Source, ToolCall
from agentguard.trajectory.safe_json import dumps, parse_arguments
from agentguard.trajectory.usage import parse_usage

_TOOL_PREFIX, _DYNAMIC_TOOL, _STEP_START = "tool-", "dynamic-tool", "step-start"
_SOURCES = {"user": Source.USER, "system": Source.SYSTEM}
_ERROR_STATES = {"output-available": False, "output-error": True, "output-denied": True}
_MESSAGE_KEYS = ("messages", "uiMessages")
_TIME_KEYS = ("createdAt", "created_at", "timestamp")
_MESSAGE_FIELDS = ("id", "role", "parts")
_TOOL_FIELDS = (
    *("type", "toolCallId", "toolName", "state", "input", "rawInput", "output", "errorText"),
    "preliminary",
)


class VercelAi:
    """Importer of UI messages of the Vercel AI SDK."""

    name = "vercel_ai"
    summary = "Vercel AI SDK UI messages (parts with tool states)"

    def score_match(self, value: Any) -> float:
        """Return a positive score for messages with a role and parts."""
        messages = value if isinstance(value, list) else _find_messages(value)
        if not isinstance(messages, list) or not messages:
            return 0.0
        return 0.97 if all(map(_is_message, messages[:8])) else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of a list of messages, or of a chat that has one."""
        node = JsonNode({"messages": value}) if isinstance(value, list) else JsonNode.from_value(value)
        key = next((key for key in _MESSAGE_KEYS if key in node), "messages")
        builder = StepBuilder()
        for index, message in enumerate(node.nodes(key)):
            _add_message(builder, message, index)
        facts, judged = split_labels(node.extra_fields(*_MESSAGE_KEYS, "id"))
        yield Record(
            trajectory=builder.build_trajectory(node.scalar_or("id") or name, self.name, extra=facts),
            annotation=Annotation(failed=infer_failed(judged), extra=judged),
        )


def _find_messages(value: Any) -> Any:
    return (
        next((value[key] for key in _MESSAGE_KEYS if key in value), None) if isinstance(value, dict) else None
    )


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    parts = value.get("parts")
    # A part of Gemini's contents has no type.
    return isinstance(parts, list) and all(isinstance(part, dict) and "type" in part for part in parts)


def _add_message(builder: StepBuilder, message: JsonNode, index: int) -> None:
    role = message.text("role")
    parts = list(message.nodes_or("parts"))
    if role in _SOURCES:
        content = parse_content([part.data for part in parts], message.field_path("parts"))
        builder.add_turn(
            content.text,
            source=_SOURCES[role],
            source_index=index,
            started_at=_find_time(message),
            unknown_parts=content.unknown_parts,
            extra=message.nonempty_extra_fields(*_MESSAGE_FIELDS),
        )
        return
    turns = _split_turns(parts)
    for place, turn in enumerate(turns):
        _add_turn(builder, message, turn, index, is_last=place == len(turns) - 1)


def _split_turns(parts: list[JsonNode]) -> list[list[JsonNode]]:
    turns: list[list[JsonNode]] = [[]]
    for part in parts:
        if part.raw("type") == _STEP_START:
            turns.append([])
        else:
            turns[-1].append(part)
    return [turn for turn in turns if turn] or [[]]


def _add_turn(
    builder: StepBuilder, message: JsonNode, parts: list[JsonNode], index: int, *, is_last: bool
) -> None:
    content = MessageContent()
    tools: list[tuple[ToolCall, JsonNode]] = []
    for place, part in enumerate(parts):
        if _is_tool(part):
            tools.append((_parse_call(part, f"call-{index}-{len(builder.steps)}-{place}"), part))
        else:
            content.extend(parse_content([part.data], part.path))
    metadata = message.node_or("metadata") if isinstance(message.raw("metadata"), dict) else JsonNode({})
    usage = next(
        (found for key in ("usage", "totalUsage") if (found := parse_usage(metadata.raw(key)))), None
    )
    builder.add_turn(
        content.text,
        reasoning="\n".join(filter(None, content.reasoning)),
        tool_calls=[*content.calls, *(call for call, _ in tools)],
        source_index=index,
        started_at=_find_time(message),
        # The metadata describe the whole message.
        usage=usage if is_last else None,
        model=next(
            (text for key in ("model", "modelId") if isinstance(text := metadata.raw(key), str)), None
        ),
        unknown_parts=content.unknown_parts,
        extra=message.nonempty_extra_fields(*_MESSAGE_FIELDS) if is_last else {},
    )
    for call, part in tools:
        _add_result(builder, call, part)


def _is_tool(part: JsonNode) -> bool:
    kind = part.text("type")
    # The messages of the model have "tool-call" and "tool-result" parts, which parse_content reads.
    return kind == _DYNAMIC_TOOL or (
        kind.startswith(_TOOL_PREFIX) and "toolCallId" in part and "state" in part
    )


def _parse_call(part: JsonNode, fallback_id: str) -> ToolCall:
    kind = part.text("type")
    key = "input" if "input" in part else "rawInput"
    value = part.raw(key)
    # A model may send text or a list instead of an object.
    arguments, raw = (
        parse_arguments(value, part.field_path(key))
        if value is None or isinstance(value, str | dict)
        else (None, dumps(value).decode())
    )
    return ToolCall(
        id=part.scalar_or("toolCallId") or fallback_id,
        name=part.text_or("toolName") if kind == _DYNAMIC_TOOL else kind.removeprefix(_TOOL_PREFIX),
        arguments=arguments,
        raw_arguments=raw,
        extra=part.nonempty_extra_fields(*_TOOL_FIELDS),
    )


def _add_result(builder: StepBuilder, call: ToolCall, part: JsonNode) -> None:
    state = part.text_or("state")
    if state not in _ERROR_STATES or part.raw("preliminary") is True:
        return  # The model has not ended the call, or the tool has not ended its work.
    error, output = part.text_or("errorText"), part.raw("output")
    text = output if isinstance(output, str) else "" if output is None else dumps(output).decode()
    builder.add_result(
        error or text,
        call_id=call.id,
        is_error=_ERROR_STATES[state],
        extra={"state": state} if state == "output-denied" else {},
    )


def _find_time(message: JsonNode) -> float | None:
    metadata = message.raw("metadata")
    nodes = [message, *([JsonNode(metadata)] if isinstance(metadata, dict) else [])]
    times = (node.timestamp_or(key) for node in nodes for key in _TIME_KEYS)
    return next((time for time in times if time is not None), None)


FORMAT = VercelAi()
