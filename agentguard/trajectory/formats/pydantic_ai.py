"""pydantic-ai messages: the list that ``all_messages_json()`` writes, or an object with it.

A retry prompt, or a return whose outcome is not a success, is an error of its tool. The arguments of an
output tool (``final_result``) are the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentguard.trajectory.formats._content_parts import parse_content
from agentguard.trajectory.formats._step_builder import StepBuilder
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Record, Source, ToolCall
from agentguard.trajectory.safe_json import dumps, parse_arguments
from agentguard.trajectory.usage import parse_usage

_KINDS = ("request", "response")
_OUTPUT_TOOL = "final_result"
_CALL_KINDS = ("tool-call", "builtin-tool-call")
_RESULT_KINDS = ("tool-return", "builtin-tool-return")
_CALL_FIELDS = ("part_kind", "tool_call_id", "tool_name", "args")
_RESULT_FIELDS = ("part_kind", "tool_call_id", "tool_name", "content", "timestamp", "outcome")
_RESPONSE_FIELDS = (
    *("kind", "parts", "usage", "timestamp", "model_name", "finish_reason"),
    *("conversation_id", "run_id"),
)
_SILENT_KINDS = ("compaction",)


class PydanticAi:
    """Importer of pydantic-ai's message histories."""

    name = "pydantic_ai"
    summary = "pydantic-ai message histories (all_messages_json)"

    def score_match(self, value: Any) -> float:
        """Return a positive score for messages with parts and the kind request or response."""
        messages = value.get("messages") if isinstance(value, dict) else value
        if not isinstance(messages, list) or not messages:
            return 0.0
        return 0.97 if all(map(_is_message, messages[:8])) else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of a list of messages."""
        node = JsonNode({"messages": value}) if isinstance(value, list) else JsonNode.from_value(value)
        messages = list(node.nodes("messages"))
        builder = StepBuilder()
        instructions: dict[str, None] = {}
        ids = [name]
        for index, message in enumerate(messages):
            if message.text("kind") == "response":
                _add_response(builder, message, index)
            else:
                instructions |= dict.fromkeys(filter(None, [message.text_or("instructions")]))
                _add_request(builder, message, index)
            ids += filter(None, [message.scalar_or("conversation_id") or message.scalar_or("run_id")])
        prompts = [step.content for step in builder.steps if step.source is Source.SYSTEM]
        prompt = "\n\n".join([*prompts, *instructions])
        run = builder.build_trajectory(
            ids[-1],
            self.name,
            system_prompts={"": prompt} if prompt else {},
            extra=node.extra_fields("messages"),
        )
        yield Record(trajectory=run)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and value.get("kind") in _KINDS and isinstance(value.get("parts"), list)


def _add_request(builder: StepBuilder, message: JsonNode, index: int) -> None:
    for part in message.nodes("parts"):
        kind = part.text("part_kind")
        tool = part.text_or("tool_name")
        if kind in _RESULT_KINDS or (kind == "retry-prompt" and tool):
            _add_result(builder, part, kind, index)
        elif kind in ("system-prompt", "user-prompt", "retry-prompt"):
            content = parse_content(_rename_kinds(part.raw("content")), part.field_path("content"))
            source = {"user-prompt": Source.USER, "system-prompt": Source.SYSTEM}.get(
                kind, Source.ENVIRONMENT
            )
            builder.add_turn(
                content.text,
                source=source,
                source_index=index,
                started_at=part.timestamp_or("timestamp"),
                unknown_parts=content.unknown_parts,
                extra={"is_error": True} if kind == "retry-prompt" else {},
            )
        else:
            builder.add_unknown(kind)


def _add_response(builder: StepBuilder, message: JsonNode, index: int) -> None:
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    unknown_parts: list[str] = []
    parts = list(message.nodes("parts"))
    for place, part in enumerate(parts):
        kind = part.text("part_kind")
        if kind == "text":
            texts.append(part.text_or("content"))
        elif kind == "thinking":
            reasoning.append(part.text_or("content"))
        elif kind in _CALL_KINDS:
            calls.append(_parse_call(part, f"call-{index}-{place}"))
        elif kind not in _RESULT_KINDS and kind not in _SILENT_KINDS:
            unknown_parts.append(kind)
    answers = [_format_answer(call) for call in calls if call.name.startswith(_OUTPUT_TOOL)]
    builder.add_turn(
        "\n".join(filter(None, [*texts, *answers])),
        reasoning="\n".join(filter(None, reasoning)),
        tool_calls=calls,
        source_index=index,
        started_at=message.timestamp_or("timestamp"),
        usage=parse_usage(message.raw("usage")),
        model=message.text_or("model_name") or None,
        stop_reason=message.text_or("finish_reason") or None,
        unknown_parts=unknown_parts,
        extra=message.nonempty_extra_fields(*_RESPONSE_FIELDS),
    )
    for part in parts:
        if part.text("part_kind") in _RESULT_KINDS:
            _add_result(builder, part, part.text("part_kind"), index)


def _parse_call(part: JsonNode, fallback_id: str) -> ToolCall:
    arguments, raw = parse_arguments(part.raw("args"), part.field_path("args"))
    return ToolCall(
        id=part.scalar_or("tool_call_id") or fallback_id,
        name=part.text_or("tool_name"),
        arguments=arguments,
        raw_arguments=raw,
        extra=part.nonempty_extra_fields(*_CALL_FIELDS),
    )


def _format_answer(call: ToolCall) -> str:
    return call.raw_arguments or (dumps(call.arguments).decode() if call.arguments else "")


def _add_result(builder: StepBuilder, part: JsonNode, kind: str, index: int) -> None:
    outcome, value = part.text_or("outcome"), part.raw("content")
    is_error = True if kind == "retry-prompt" else outcome != "success" if outcome else None
    builder.add_result(
        value if isinstance(value, str) else "" if value is None else dumps(value).decode(),
        call_id=part.scalar_or("tool_call_id") or None,
        tool=part.text_or("tool_name") or None,
        is_error=is_error,
        source_index=index,
        ended_at=part.timestamp_or("timestamp"),
        extra=part.nonempty_extra_fields(*_RESULT_FIELDS),
    )


def _rename_kinds(value: Any) -> Any:
    """Return user content with ``type`` for the ``kind`` of its parts."""
    if not isinstance(value, list):
        return value
    return [
        {"type": part["kind"], **part}
        if isinstance(part, dict) and isinstance(part.get("kind"), str)
        else part
        for part in value
    ]


FORMAT = PydanticAi()
