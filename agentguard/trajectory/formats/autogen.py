"""AutoGen: chat histories of version 0.2, and messages and events of version 0.4.

In a history of 0.2, roles are relative to the owner of the history: the same agent may be ``user`` and
``assistant``. So the name of the speaker decides. The first speaker is the user.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentguard.trajectory.formats._chat_messages import parse_message_calls
from agentguard.trajectory.formats._content_parts import parse_content
from agentguard.trajectory.formats._step_builder import StepBuilder
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Record, Source, ToolCall, Usage
from agentguard.trajectory.safe_json import dumps, parse_arguments
from agentguard.trajectory.usage import add_run_totals, parse_usage

_MESSAGE_KEYS = ("messages", "chat_history")
_CODE_RESULT = "exitcode: "
"""Beginning of the result of executed code, in the name of the agent that executes it."""
_TEXT_TYPES = ("TextMessage", "StopMessage", "HandoffMessage", "MultiModalMessage", "StructuredMessage")
_CALL_TYPE, _RESULT_TYPE, _THOUGHT_TYPE = "ToolCallRequestEvent", "ToolCallExecutionEvent", "ThoughtEvent"
_TURN_TYPES = (*_TEXT_TYPES, _CALL_TYPE)
_CHAT_FIELDS = ("content", "role", "name", "tool_calls", "function_call", "tool_responses", "tool_call_id")
_EVENT_FIELDS = ("content", "source", "type", "models_usage", "created_at", "id")
_SILENT_TYPES = ("ModelClientStreamingChunkEvent", "UserInputRequestedEvent", "ToolCallSummaryMessage")
"""Pieces of a later message, and repeated results."""


class AutoGen:
    """Importer of AutoGen's chats."""

    name = "autogen"
    summary = "AutoGen chat histories (0.2) and messages with events (0.4)"

    def score_match(self, value: Any) -> float:
        """Return a positive score for messages with names of several speakers, or with sources and types."""
        messages = value if isinstance(value, list) else _find_messages(value)
        if (
            not isinstance(messages, list)
            or not messages
            or not all(isinstance(one, dict) for one in messages)
        ):
            return 0.0
        if all(map(_is_event, messages)):
            return 0.97
        return 0.965 if _is_owner_history(messages) else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of a list of messages, or of a result that has one."""
        node = JsonNode({"messages": value}) if isinstance(value, list) else JsonNode.from_value(value)
        key = next((key for key in _MESSAGE_KEYS if key in node), "messages")
        messages = list(node.nodes(key))
        builder = StepBuilder()
        thoughts: list[str] = []
        for index, message in enumerate(messages):
            if "source" not in message:
                _add_chat_message(builder, message, index, user=messages[0].text_or("name"))
            elif message.raw("type") == _THOUGHT_TYPE:
                thoughts.append(message.text_or("content"))
            else:
                _add_event(builder, message, index, reasoning="\n".join(thoughts))
                if message.raw("type") in _TURN_TYPES:
                    thoughts = []
        if thoughts:
            builder.add_turn(agent=messages[-1].text("source"), reasoning="\n".join(thoughts))
        status = node.raw("stop_reason")
        run = builder.build_trajectory(
            name,
            self.name,
            exit_status=status if isinstance(status, str) else None,
            extra=node.extra_fields(*_MESSAGE_KEYS, "stop_reason"),
        )
        yield Record(trajectory=add_run_totals(run, _iter_model_usages(node.raw("cost"))))


def _iter_model_usages(cost: Any) -> Iterator[Usage | None]:
    """Yield the usage of each model in the ``cost`` of a chat result of version 0.2."""
    totals = cost.get("usage_including_cached_inference") if isinstance(cost, dict) else None
    for usage in totals.values() if isinstance(totals, dict) else ():
        yield parse_usage(usage)


def _find_messages(value: Any) -> Any:
    return (
        next((value[key] for key in _MESSAGE_KEYS if key in value), None) if isinstance(value, dict) else None
    )


def _is_owner_history(messages: list[dict[str, Any]]) -> bool:
    """Return True for messages with names in which the first speaker has the role of the assistant."""
    names = [one.get("name") for one in messages]
    is_named = all(isinstance(name, str) and name for name in names) and len(set(names)) > 1
    has_roles = all(one.get("role") in ("user", "assistant", "tool", "function") for one in messages)
    return is_named and has_roles and messages[0]["role"] == "assistant" and "content" in messages[0]


def _is_event(value: dict[str, Any]) -> bool:
    kind = value.get("type")
    return (
        isinstance(value.get("source"), str)
        and isinstance(kind, str)
        and kind.endswith(("Message", "Event"))
        and "content" in value
    )


def _add_chat_message(builder: StepBuilder, message: JsonNode, index: int, *, user: str) -> None:
    responses = list(message.nodes_or("tool_responses"))
    if responses or message.raw("role") in ("tool", "function"):
        for response in responses or [message]:
            content = parse_content(response.raw("content"), response.field_path("content"))
            call_id = response.scalar_or("tool_call_id") or None
            builder.add_result(
                content.text,
                call_id=call_id,
                source_index=index,
                unknown_parts=content.unknown_parts,
                extra=response.extra_fields(*_CHAT_FIELDS),
            )
        return
    content = parse_content(message.raw("content"), message.field_path("content"))
    speaker = message.text_or("name")
    calls = parse_message_calls(message, index)
    if content.text.startswith(_CODE_RESULT):
        source = Source.ENVIRONMENT
    else:
        source = Source.USER if speaker == user and not calls else Source.AGENT
    builder.add_turn(
        content.text,
        source=source,
        agent=speaker,
        tool_calls=calls,
        source_index=index,
        unknown_parts=content.unknown_parts,
        extra=message.extra_fields(*_CHAT_FIELDS),
    )


def _add_event(builder: StepBuilder, event: JsonNode, index: int, *, reasoning: str) -> None:
    kind, speaker = event.text_or("type"), event.text("source")
    if kind == _RESULT_TYPE:
        for result in event.nodes("content"):
            builder.add_result(
                result.text_or("content"),
                call_id=result.scalar_or("call_id") or None,
                tool=result.text_or("name") or None,
                is_error=result.boolean_or("is_error"),
                source_index=index,
                ended_at=event.timestamp_or("created_at"),
                extra=result.extra_fields("content", "call_id", "name", "is_error"),
            )
        return
    if kind not in _TURN_TYPES:
        if kind not in _SILENT_TYPES:
            builder.add_unknown(kind)
        return
    is_call = kind == _CALL_TYPE
    content = parse_content(None if is_call else _to_parts(event.raw("content")), event.field_path("content"))
    builder.add_turn(
        content.text,
        source=Source.USER if speaker == "user" else Source.AGENT,
        agent=speaker,
        reasoning=reasoning,
        tool_calls=[_parse_call(call, index) for call in event.nodes("content")] if is_call else (),
        source_index=index,
        started_at=event.timestamp_or("created_at"),
        usage=parse_usage(event.raw("models_usage")),
        unknown_parts=content.unknown_parts,
        extra=event.nonempty_extra_fields(*_EVENT_FIELDS),
    )


def _to_parts(content: Any) -> Any:
    """Return the content of a structured message as a text."""
    return dumps(content).decode() if isinstance(content, dict) else content


def _parse_call(call: JsonNode, index: int) -> ToolCall:
    arguments, raw = parse_arguments(call.raw("arguments"), call.field_path("arguments"))
    return ToolCall(
        id=call.scalar_or("id") or f"call-{index}",
        name=call.text_or("name"),
        arguments=arguments,
        raw_arguments=raw,
        extra=call.extra_fields("id", "name", "arguments"),
    )


FORMAT = AutoGen()
