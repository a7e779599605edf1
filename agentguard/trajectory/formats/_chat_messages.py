"""Conversion of chat messages (OpenAI's shape, common in recordings) to steps.

One step is one assistant turn with the tool results that follow it. User and system messages are separate
steps. A tool message answers the call of the previous turn with its ``tool_call_id``, or without an id the
first unanswered call. A tool message that answers no call of that turn becomes an ENVIRONMENT step: adding it
to an earlier turn would show that turn later information.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentguard.errors import FormatError
from agentguard.trajectory._json_node import JsonNode, describe_type, wrap_nodes
from agentguard.trajectory._safe_json import loads
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec

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
_STANDARD_FIELDS = ("system", "user", "assistant")
_TURN_FIELDS = frozenset({"role", "content", "tool_calls", "function_call", "reasoning_content"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedChat:
    """Result of parsing a list of messages.

    Attributes:
        steps: the steps, in order.
        task: text of the first user message; empty if there is no user message.
        system_prompts: the leading system messages under ``""``.
        step_by_message: message index to the index of its step.
    """

    steps: tuple[Step, ...]
    task: str
    system_prompts: Mapping[str, str]
    step_by_message: Mapping[int, int]


def parse_chat(messages: list[Any], *, path: str = "messages", agent: str = "assistant") -> ParsedChat:
    """Convert messages into steps. Raises FormatError with the field of a malformed message.

    Args:
        messages: the parsed messages.
        path: dotted path of the list, for errors.
        agent: name of the assistant for messages without a ``name``.
    """
    builder = _StepBuilder(agent=agent)
    for index, message in enumerate(messages):
        if not builder.add_plain_message(index, message):
            builder.add_message(index, JsonNode.from_value(message, f"{path}[{index}]"))
    steps = tuple(builder.steps)
    task = next((step.content for step in steps if step.source is Source.USER), "")
    return ParsedChat(
        steps=steps,
        task=task,
        system_prompts=_collect_system_prompts(steps),
        step_by_message=builder.step_by_message,
    )


def add_tool_results(step: Step, messages: Sequence[Any], *, path: str = "messages") -> Step:
    """Add tool messages to the step of a single message, as `parse_chat` does.

    Raises:
        FormatError: a message is malformed; the error names its field.
    """
    builder = _StepBuilder(
        agent=step.agent, steps=[step], _calls=step.tool_calls, _pending_calls=list(step.tool_calls)
    )
    for index, message in enumerate(messages, start=1):
        if not builder.add_plain_message(index, message):
            builder.add_message(index, JsonNode.from_value(message, f"{path}[{index}]"))
    return builder.steps[0]


def is_chat_message(value: Any) -> bool:
    """Return True if a value has the form of a chat message."""
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    return not {"content", "tool_calls", "function_call"}.isdisjoint(value)


def extract_content_text(value: Any, path: str) -> str:
    """Return the text of a message's content: a string, null, or a list of parts (only texts are read)."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise FormatError(f"expected text or a list of parts, found {describe_type(value)}", field=path)
    return "\n".join(
        text for i, part in enumerate(value) if (text := _extract_part_text(part, f"{path}[{i}]"))
    )


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


def parse_arguments(value: Any, path: str) -> tuple[dict[str, Any] | None, str | None]:
    """Return arguments as ``(object, recorded text)``; each is None if absent or not a JSON object."""
    if value is None:
        return None, None
    if isinstance(value, dict):
        return value, None
    if not isinstance(value, str):
        raise FormatError(f"expected text or an object, found {describe_type(value)}", field=path)
    try:
        arguments = loads(value, strict=True)
    except FormatError:
        return None, value
    return (arguments if isinstance(arguments, dict) else None), value


def parse_tool_specs(values: list[Any], path: str) -> tuple[ToolSpec, ...]:
    """Parse tool definitions, wrapped (``{type, function}``, chat API) or flat (Responses API)."""
    return tuple(_parse_tool_spec(node) for node in wrap_nodes(values, path))


def _parse_tool_spec(node: JsonNode) -> ToolSpec:
    wrapped = "function" in node
    inner = node.node("function") if wrapped else node
    extra = inner.extra_fields("name", "description", "parameters")
    if wrapped:
        extra = {**node.extra_fields("function", "type"), **({"function": extra} if extra else {})}
    # Hosted tools of the Responses API ({"type": "web_search"}) have a type and no name.
    return ToolSpec(
        name=inner.text_or("name") or inner.text_or("type"),
        description=inner.text_or("description"),
        parameters=inner.node_or("parameters").data,
        extra=extra,
    )


def _extract_part_text(part: Any, path: str) -> str:
    if isinstance(part, str):
        return part
    node = JsonNode.from_value(part, path)
    for key in ("text", "refusal"):
        value = node.raw(key)
        if isinstance(value, str):
            return value
    return ""


def _collect_system_prompts(steps: tuple[Step, ...]) -> dict[str, str]:
    leading = []
    for step in steps:
        if step.source is not Source.SYSTEM:
            break
        leading.append(step.content)
    return {"": "\n\n".join(leading)} if leading else {}


@dataclass(slots=True, kw_only=True)
class _StepBuilder:
    agent: str
    steps: list[Step] = field(default_factory=list)
    step_by_message: dict[int, int] = field(default_factory=dict)
    _pending_calls: list[ToolCall] = field(default_factory=list)
    _calls: tuple[ToolCall, ...] = ()
    _turn_index: int = 0

    def add_message(self, index: int, message: JsonNode) -> None:
        role = message.text("role")
        if role in _RESULT_ROLES and (call := self._find_answered_call(message)) is not None:
            self._attach_result(index, message, call)
            return
        step = (
            self._add_result_step(index, message)
            if role in _RESULT_ROLES
            else self._add_turn(index, message, role)
        )
        if role not in _RESULT_ROLES:
            self._calls, self._pending_calls, self._turn_index = (
                step.tool_calls,
                list(step.tool_calls),
                step.index,
            )
        self.step_by_message[index] = step.index
        self.steps.append(step)

    def add_plain_message(self, index: int, message: Any) -> bool:
        """Add a message with only the usual fields at lower cost; return False for any other message.

        The result equals that of the general method.
        """
        if type(message) is not dict or "content" not in message:
            return False
        role, content, size = message.get("role"), message["content"], len(message)
        if role == "tool":
            return size == 3 and type(content) is str and self._attach_plain_result(index, message, content)
        calls: tuple[ToolCall, ...] | None = ()
        if role == "assistant" and size == 3 and (content is None or (type(content) is str and content)):
            calls = _parse_plain_calls(message.get("tool_calls"))
        elif size != 2 or type(content) is not str or role not in _STANDARD_FIELDS:
            return False
        if calls is None:
            return False
        self._calls, self._pending_calls, self._turn_index = calls, list(calls), len(self.steps)
        step = Step(
            index=self._turn_index,
            source=_ROLE_SOURCES.get(role, Source.AGENT),
            agent=self.agent if role == "assistant" else role,
            content=content or "",
            tool_calls=calls,
            source_index=index,
        )
        self.step_by_message[index] = step.index
        self.steps.append(step)
        return True

    def _attach_plain_result(self, index: int, message: dict[str, Any], content: str) -> bool:
        id = message.get("tool_call_id")
        if type(id) is not str or not id:
            return False
        call = next((call for call in (*self._pending_calls, *self._calls) if call.id == id), None)
        if call is None:
            return False
        self._add_observation(index, call, Observation(content=content, call_id=id, tool=call.name))
        return True

    def _find_answered_call(self, message: JsonNode) -> ToolCall | None:
        """Return the call that a tool message answers; two answers to one call count as one."""
        call_id = message.scalar_or("tool_call_id")
        if call_id:
            return next((call for call in (*self._pending_calls, *self._calls) if call.id == call_id), None)
        name = message.text_or("name")
        return next((call for call in self._pending_calls if not name or call.name == name), None)

    def _attach_result(self, index: int, message: JsonNode, call: ToolCall) -> None:
        self._add_observation(index, call, _build_observation(message, call))

    def _add_observation(self, index: int, call: ToolCall, observation: Observation) -> None:
        self._pending_calls = [pending for pending in self._pending_calls if pending is not call]
        step = self.steps[self._turn_index]
        self.steps[self._turn_index] = step.with_observations((*step.observations, observation))
        self.step_by_message[index] = step.index

    def _add_turn(self, index: int, message: JsonNode, role: str) -> Step:
        data = message.data
        content, refusal = data.get("content"), data.get("refusal")
        extra = {name: value for name, value in data.items() if name not in _TURN_FIELDS}
        if role not in _STANDARD_FIELDS:
            extra["role"] = role
        if isinstance(content, list) or (content == "" and "tool_calls" in message):
            extra["content"] = content
        text = (
            content
            if isinstance(content, str)
            else extract_content_text(content, message.field_path("content"))
        )
        return Step(
            index=len(self.steps),
            source=_ROLE_SOURCES.get(role, Source.AGENT),
            agent=message.text_or("name") or (self.agent if role == "assistant" else role),
            content=text or (refusal if isinstance(refusal, str) else ""),
            reasoning=message.text_or("reasoning_content"),
            tool_calls=_parse_calls(index, message),
            source_index=index,
            extra=extra,
        )

    def _add_result_step(self, index: int, message: JsonNode) -> Step:
        extra = message.extra_fields("content")
        if isinstance(message.raw("content"), list):
            extra["content"] = message.raw("content")
        return Step(
            index=len(self.steps),
            source=Source.ENVIRONMENT,
            agent=message.text_or("name") or "tool",
            content=extract_content_text(message.raw("content"), message.field_path("content")),
            source_index=index,
            extra=extra,
        )


_CALL, _TYPED_CALL, _FUNCTION = {"id", "function"}, {"id", "type", "function"}, {"name", "arguments"}


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


def _parse_calls(index: int, message: JsonNode) -> tuple[ToolCall, ...]:
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


def _build_observation(message: JsonNode, call: ToolCall) -> Observation:
    extra = message.extra_fields("role", "content", "tool_call_id")
    if isinstance(message.raw("content"), list):
        extra["content"] = message.raw("content")
    return Observation(
        content=extract_content_text(message.raw("content"), message.field_path("content")),
        call_id=call.id,
        tool=message.text_or("name") or call.name,
        extra=extra,
    )
