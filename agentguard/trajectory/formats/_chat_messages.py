"""Conversion of chat messages (OpenAI's shape, with the content parts of all model APIs) to steps.

One step is one assistant turn with the tool results that follow it. User and system messages are separate
steps. A result is a tool message, or a content part of any message (Anthropic writes results into a user
message). It answers the call of the previous turn with its id, or without an id the first unanswered call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentguard.trajectory.formats._content_parts import MessageContent, parse_content
from agentguard.trajectory.formats._step_builder import StepBuilder, collect_system_prompts
from agentguard.trajectory.json_node import JsonNode, parse_timestamp, wrap_nodes
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec
from agentguard.trajectory.safe_json import parse_arguments
from agentguard.trajectory.usage import parse_usage

_ROLE_SOURCES = {
    "system": Source.SYSTEM,
    "developer": Source.SYSTEM,
    "user": Source.USER,
    "human": Source.USER,
    "environment": Source.ENVIRONMENT,
    "observation": Source.ENVIRONMENT,
    "ipython": Source.ENVIRONMENT,
}
_RESULT_ROLES = ("tool", "function")
_AGENT_ROLES = ("assistant", "model")
_TIME_FIELDS = ("timestamp", "created_at", "createdAt", "created")
_STANDARD_FIELDS = ("system", "user", "assistant")
_TURN_FIELDS = frozenset({"role", "content", "tool_calls", "function_call", "reasoning_content"})
_CALL, _TYPED_CALL, _FUNCTION = {"id", "function"}, {"id", "type", "function"}, {"name", "arguments"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedChat:
    """Result of parsing a list of messages.

    Attributes:
        steps: the steps, in order.
        task: text of the first user message; empty if there is no user message.
        system_prompts: the leading system messages under ``""``.
        step_by_message: index of the step of each message, by message index.
        unknown_parts: number of the content parts that could not be read, by type.
    """

    steps: tuple[Step, ...]
    task: str
    system_prompts: Mapping[str, str]
    step_by_message: Mapping[int, int]
    unknown_parts: Mapping[str, int]


def parse_chat(messages: list[Any], *, path: str = "messages", agent: str = "assistant") -> ParsedChat:
    """Convert messages into steps. Raises FormatError with the field of a malformed message.

    Args:
        messages: the parsed messages.
        path: dotted path of the list, for errors.
        agent: name of the assistant for messages without a ``name``.
    """
    builder = _ChatBuilder(agent=agent)
    for index, message in enumerate(messages):
        if not builder.add_plain_message(index, message):
            builder.add_message(index, JsonNode.from_value(message, f"{path}[{index}]"))
    steps = tuple(builder.steps)
    task = next((step.content for step in steps if step.source is Source.USER), "")
    return ParsedChat(
        steps=steps,
        task=task,
        system_prompts=collect_system_prompts(steps),
        step_by_message=builder.step_by_message,
        unknown_parts=dict(sorted(builder.unknown_parts.items())),
    )


def parse_chat_turn(messages: Sequence[Any], *, agent: str = "assistant") -> Step:
    """Return the first step of messages of a request, as `parse_chat` does, without a place in a file.

    Raises:
        FormatError: a message is malformed.
    """
    if len(messages) == 1 and (step := _build_plain_step(messages[0], agent, 0, None)) is not None:
        return step
    steps = parse_chat([dict(message) for message in messages], agent=agent).steps
    return replace(steps[0], source_index=None)


def add_tool_results(step: Step, messages: Sequence[Any], *, path: str = "messages") -> Step:
    """Add tool messages to the step of a single message, as `parse_chat` does.

    Raises:
        FormatError: a message is malformed; the error names its field.
    """
    builder = _ChatBuilder(agent=step.agent)
    builder.append_turn(step.with_index(0))
    for index, message in enumerate(messages, start=1):
        if not builder.add_plain_message(index, message):
            builder.add_message(index, JsonNode.from_value(message, f"{path}[{index}]"))
    return builder.steps[0].with_index(step.index)


def is_chat_message(value: Any) -> bool:
    """Return True if a value has the form of a chat message."""
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    return not {"content", "tool_calls", "function_call"}.isdisjoint(value)


def extract_content_text(value: Any, path: str) -> str:
    """Return the text of a message's content: a string, null, or a list of parts (only texts are read)."""
    return parse_content(value, path).text


def parse_tool_call(node: JsonNode, *, fallback_id: str) -> ToolCall:
    """Parse a call ``{id, function: {name, arguments}}``; ``arguments`` is text or an object."""
    function = node.node("function")
    arguments, raw = parse_arguments(function.raw("arguments"), function.field_path("arguments"))
    extra = node.extra_fields("id", "function")
    if unknown := function.extra_fields("name", "arguments"):
        extra["function"] = unknown
    if extra.get("type") == "function":
        del extra["type"]
    return ToolCall(
        id=node.scalar_or("id") or fallback_id,
        name=function.text("name"),
        arguments=arguments,
        raw_arguments=raw,
        extra=extra,
    )


def parse_tool_specs(values: list[Any], path: str) -> tuple[ToolSpec, ...]:
    """Parse tool definitions: wrapped (``{type, function}``, chat API) or flat (Responses, Anthropic)."""
    return tuple(_parse_tool_spec(node) for node in wrap_nodes(values, path))


def _parse_tool_spec(node: JsonNode) -> ToolSpec:
    wrapped = "function" in node
    inner = node.node("function") if wrapped else node
    schema = next(
        (key for key in ("parameters", "input_schema", "inputSchema") if key in inner), "parameters"
    )
    extra = inner.extra_fields("name", "description", schema)
    if wrapped:
        extra = {**node.extra_fields("function", "type"), **({"function": extra} if extra else {})}
    # Hosted tools of the Responses API ({"type": "web_search"}) have a type and no name.
    return ToolSpec(
        name=inner.text_or("name") or inner.text_or("type"),
        description=inner.text_or("description"),
        parameters=_unwrap_schema(inner.node_or(schema).data),
        extra=extra,
    )


def _unwrap_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema inside ``json`` (Bedrock), or the schema itself."""
    inner = schema.get("json")
    return inner if len(schema) == 1 and isinstance(inner, dict) else schema


@dataclass(slots=True, kw_only=True)
class _ChatBuilder(StepBuilder):
    step_by_message: dict[int, int] = field(default_factory=dict)

    def add_message(self, index: int, message: JsonNode) -> None:
        role = message.text("role")
        content = parse_content(
            message.raw("content"), message.field_path("content"), call_prefix=f"call-{index}"
        )
        if role in _RESULT_ROLES and not content.results:
            self.step_by_message[index] = self._add_tool_message(index, message, content)
            return
        is_answer = bool(content.results) and role not in _AGENT_ROLES
        fields = message.extra_fields(*_TURN_FIELDS) if is_answer else {}
        if not is_answer:
            self.step_by_message[index] = self._add_turn_message(index, message, role, content)
        for result in content.results:
            step = self.add_result(
                result.content,
                call_id=result.call_id,
                tool=result.tool,
                is_error=result.is_error,
                source_index=index,
                unknown_parts=result.unknown_parts,
                extra={**fields, **result.extra},
            )
            self.step_by_message.setdefault(index, step)
        if is_answer and (content.text or content.unknown_parts):
            # The user's own text is beside the results, and the model reads it after them.
            self._add_turn_message(index, message, role, content)

    def add_plain_message(self, index: int, message: Any) -> bool:
        """Add a message with only the usual fields at lower cost; return False for any other message.

        The result equals that of the general method.
        """
        if type(message) is dict and message.get("role") == "tool":
            return self._attach_plain_result(index, message)
        step = _build_plain_step(message, self.agent, len(self.steps), index)
        if step is None:
            return False
        self.step_by_message[index] = self.append_turn(step)
        return True

    def _attach_plain_result(self, index: int, message: dict[str, Any]) -> bool:
        id, content = message.get("tool_call_id"), message.get("content")
        if len(message) != 3 or type(content) is not str:
            return False
        if type(id) is not str or not id or (call := self.find_call(id)) is None:
            return False
        self.step_by_message[index] = self.attach_observation(
            call, Observation(content=content, call_id=id, tool=call.name)
        )
        return True

    def _add_tool_message(self, index: int, message: JsonNode, content: MessageContent) -> int:
        raw, name = message.raw("content"), message.text_or("name")
        parts = {"content": raw} if isinstance(raw, list) else {}
        call = self.find_call(message.scalar_or("tool_call_id") or None, name or None)
        if call is None:
            return self.append_step(
                Step(
                    index=len(self.steps),
                    source=Source.ENVIRONMENT,
                    agent=name or "tool",
                    content=content.text,
                    source_index=index,
                    unknown_parts=tuple(content.unknown_parts),
                    extra=message.extra_fields("content") | parts,
                )
            )
        observation = Observation(
            content=content.text,
            call_id=call.id,
            tool=name or call.name,
            is_error=_parse_error_flag(message),
            extra=message.extra_fields("role", "content", "tool_call_id") | parts,
        )
        return self.attach_observation(call, observation, unknown_parts=content.unknown_parts)

    def _add_turn_message(self, index: int, message: JsonNode, role: str, content: MessageContent) -> int:
        data = message.data
        raw, refusal = data.get("content"), data.get("refusal")
        extra = {name: value for name, value in data.items() if name not in _TURN_FIELDS}
        if role not in _STANDARD_FIELDS:
            extra["role"] = role
        if (isinstance(raw, list) and not content.has_blocks) or (raw == "" and "tool_calls" in message):
            extra["content"] = raw
        elif content.citations:
            extra["citations"] = content.citations
        reasoning = (message.text_or("reasoning_content"), *content.reasoning)
        return self.append_turn(
            Step(
                index=len(self.steps),
                source=_ROLE_SOURCES.get(role, Source.AGENT),
                agent=message.text_or("name") or (self.agent if role in _AGENT_ROLES else role),
                content=content.text or (refusal if isinstance(refusal, str) else ""),
                reasoning="\n".join(filter(None, reasoning)),
                tool_calls=(*content.calls, *parse_message_calls(message, index)),
                started_at=parse_timestamp(next((data[key] for key in _TIME_FIELDS if key in data), None)),
                usage=parse_usage(data.get("usage")),
                model=_get_text(data, "model") if role in _AGENT_ROLES else None,
                source_index=index,
                stop_reason=_get_text(data, "stop_reason") or _get_text(data, "finish_reason"),
                unknown_parts=tuple(content.unknown_parts),
                extra=extra,
            )
        )


def _build_plain_step(message: Any, agent: str, index: int, source_index: int | None) -> Step | None:
    """Return the step of a turn with only the usual fields; None for any other message."""
    if type(message) is not dict or "content" not in message:
        return None
    role, content, size = message.get("role"), message["content"], len(message)
    calls: tuple[ToolCall, ...] | None = ()
    if role == "assistant" and size == 3 and (content is None or (type(content) is str and content)):
        calls = _parse_plain_calls(message.get("tool_calls"))
    elif size != 2 or type(content) is not str or role not in _STANDARD_FIELDS:
        return None
    if calls is None:
        return None
    return Step(
        index=index,
        source=_ROLE_SOURCES.get(role, Source.AGENT),
        agent=agent if role == "assistant" else role,
        content=content or "",
        tool_calls=calls,
        source_index=source_index,
    )


def _get_text(data: Mapping[str, Any], key: str) -> str | None:
    value = data.get(key)
    return value if isinstance(value, str) and value else None


def _parse_error_flag(message: JsonNode) -> bool | None:
    """Return the error flag of a tool message: ``is_error`` or ``error``, or ``status`` of LangChain."""
    for key in ("is_error", "isError", "error"):
        if isinstance(flag := message.raw(key), bool):
            return flag
    status = message.raw("status")
    return status == "error" if status in ("error", "success") else None


def _parse_plain_calls(values: Any) -> tuple[ToolCall, ...] | None:
    """Parse calls that have only the usual fields; return None for an empty list or other calls."""
    if type(values) is not list or not values:
        return None
    calls = []
    for call in values:
        if type(call) is not dict or (call.keys() != _TYPED_CALL and call.keys() != _CALL):
            return None
        id, function = call["id"], call["function"]
        if type(id) is not str or not id or call.get("type", "function") != "function":
            return None
        if type(function) is not dict or function.keys() != _FUNCTION or type(function["name"]) is not str:
            return None
        if type(function["arguments"]) is not str and type(function["arguments"]) is not dict:
            return None
        arguments, raw = parse_arguments(function["arguments"], "")
        calls.append(ToolCall(id=id, name=function["name"], arguments=arguments, raw_arguments=raw))
    return tuple(calls)


def parse_message_calls(message: JsonNode, index: int) -> tuple[ToolCall, ...]:
    """Parse ``tool_calls`` and the older ``function_call`` of the message with an index.

    Raises:
        FormatError: a call is malformed; names the field.
    """
    if "tool_calls" not in message and "function_call" not in message:
        return ()
    calls = [
        parse_tool_call(node, fallback_id=f"call-{index}-{i}")
        for i, node in enumerate(message.nodes_or("tool_calls"))
    ]
    if "function_call" in message:
        wrapped = JsonNode({"function": message.raw("function_call"), "legacy": True}, message.path)
        calls.append(parse_tool_call(wrapped, fallback_id=f"call-{index}-{len(calls)}"))
    return tuple(calls)


def build_chat_call(id: Any, name: str, arguments: Any, **extra: Any) -> dict[str, Any]:
    """Return a tool call of Chat Completions; an empty id is omitted, so that results answer in order."""
    call = {"id": id or None, "function": drop_none({"name": name, "arguments": arguments}), **extra}
    return drop_none(call)


def drop_none(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {key: value for key, value in data.items() if value is not None}
