"""Chat messages (OpenAI's shape, which many recordings use) to steps.

One step is one assistant turn with the tool results that follow it; user and system messages are steps of
their own. A tool message answers the call of the turn before it that has its ``tool_call_id``, or the first
one not yet answered where it has none. A tool message that answers no call of that turn becomes an
ENVIRONMENT step: folding it into an earlier turn would show that turn something which came later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentguard.errors import FormatError
from agentguard.trajectory.formats._fields import Node, kind, nodes
from agentguard.trajectory.formats._json import loads
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec

_SOURCES = {
    "system": Source.SYSTEM,
    "developer": Source.SYSTEM,
    "user": Source.USER,
    "human": Source.USER,
    "environment": Source.ENVIRONMENT,
    "observation": Source.ENVIRONMENT,
    "ipython": Source.ENVIRONMENT,
}
_RESULTS = ("tool", "function")
_STANDARD = ("system", "user", "assistant")
_OF_A_TURN = frozenset({"role", "content", "tool_calls", "function_call", "reasoning_content"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRun:
    """What a list of messages becomes.

    Attributes:
        steps: the steps, in order.
        task: text of the first user message; empty if there is none.
        system_prompts: the leading system messages under ``""``.
        step_of: message index to the index of the step it went into.
    """

    steps: tuple[Step, ...]
    task: str
    system_prompts: Mapping[str, str]
    step_of: Mapping[int, int]


def chat_run(messages: list[Any], *, at: str = "messages", agent: str = "assistant") -> ChatRun:
    """Turn messages into steps. Raises FormatError with the field of a message that is malformed.

    Args:
        messages: the parsed messages.
        at: dotted place of the list, for errors.
        agent: name of the assistant where a message has no ``name``.
    """
    builder = _Builder(agent=agent)
    for index, message in enumerate(messages):
        if not builder.add_plain(index, message):
            builder.add(index, Node.of(message, f"{at}[{index}]"))
    steps = tuple(builder.steps)
    task = next((step.content for step in steps if step.source is Source.USER), "")
    return ChatRun(steps=steps, task=task, system_prompts=_prompts(steps), step_of=builder.step_of)


def with_results(step: Step, messages: Sequence[Any], *, at: str = "messages") -> Step:
    """A turn that was one message, with the tool messages that followed it, as `chat_run` folds them.

    Raises:
        FormatError: one of them is malformed; names its field.
    """
    builder = _Builder(agent=step.agent, steps=[step], _calls=step.tool_calls, _open=list(step.tool_calls))
    for index, message in enumerate(messages, start=1):
        if not builder.add_plain(index, message):
            builder.add(index, Node.of(message, f"{at}[{index}]"))
    return builder.steps[0]


def is_message(value: Any) -> bool:
    """Whether a value looks like one chat message."""
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    return not {"content", "tool_calls", "function_call"}.isdisjoint(value)


def content_text(value: Any, at: str) -> str:
    """Text of a message's content: a string, null, or a list of parts (only their text is read)."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise FormatError(f"expected text or a list of parts, found {kind(value)}", field=at)
    return "\n".join(text for i, part in enumerate(value) if (text := _part_text(part, f"{at}[{i}]")))


def tool_call(node: Node, *, fallback_id: str) -> ToolCall:
    """A call in the shape ``{id, function: {name, arguments}}``; ``arguments`` is text or an object."""
    function = node.node("function")
    arguments, raw = parse_arguments(function.raw("arguments"), function.at("arguments"))
    extra = node.rest("id", "function")
    if unknown := function.rest("name", "arguments"):
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


def parse_arguments(value: Any, at: str) -> tuple[dict[str, Any] | None, str | None]:
    """Arguments as ``(object or None, recorded text or None)``; text that is no JSON object gives None."""
    if value is None:
        return None, None
    if isinstance(value, dict):
        return value, None
    if not isinstance(value, str):
        raise FormatError(f"expected text or an object, found {kind(value)}", field=at)
    try:
        parsed = loads(value, strict=True)
    except FormatError:
        return None, value
    return (parsed if isinstance(parsed, dict) else None), value


def tool_specs(values: list[Any], at: str) -> tuple[ToolSpec, ...]:
    """Tool definitions, wrapped (``{type, function}``, the chat API) or flat (the Responses API)."""
    return tuple(_tool_spec(node) for node in nodes(values, at))


def _tool_spec(node: Node) -> ToolSpec:
    wrapped = "function" in node
    inner = node.node("function") if wrapped else node
    extra = inner.rest("name", "description", "parameters")
    if wrapped:
        extra = {**node.rest("function", "type"), **({"function": extra} if extra else {})}
    # Hosted tools of the Responses API ({"type": "web_search"}) have a type and no name.
    return ToolSpec(
        name=inner.text_or("name") or inner.text_or("type"),
        description=inner.text_or("description"),
        parameters=inner.node_or("parameters").data,
        extra=extra,
    )


def _part_text(part: Any, at: str) -> str:
    if isinstance(part, str):
        return part
    node = Node.of(part, at)
    for key in ("text", "refusal"):
        value = node.raw(key)
        if isinstance(value, str):
            return value
    return ""


def _prompts(steps: tuple[Step, ...]) -> dict[str, str]:
    leading = []
    for step in steps:
        if step.source is not Source.SYSTEM:
            break
        leading.append(step.content)
    return {"": "\n\n".join(leading)} if leading else {}


@dataclass(slots=True, kw_only=True)
class _Builder:
    agent: str
    steps: list[Step] = field(default_factory=list)
    step_of: dict[int, int] = field(default_factory=dict)
    _open: list[ToolCall] = field(default_factory=list)
    _calls: tuple[ToolCall, ...] = ()
    _turn_at: int = 0

    def add(self, index: int, message: Node) -> None:
        role = message.text("role")
        if role in _RESULTS and (call := self._answered(message)) is not None:
            self._fold(index, message, call)
            return
        step = self._result(index, message) if role in _RESULTS else self._turn(index, message, role)
        if role not in _RESULTS:
            self._calls, self._open, self._turn_at = step.tool_calls, list(step.tool_calls), step.index
        self.step_of[index] = step.index
        self.steps.append(step)

    def add_plain(self, index: int, message: Any) -> bool:
        """Add a message that has the usual fields and no other, at less cost; False if it is no such one.

        What comes of it is what `add` makes of it.
        """
        if type(message) is not dict or "content" not in message:
            return False
        role, content, size = message.get("role"), message["content"], len(message)
        if role == "tool":
            return size == 3 and type(content) is str and self._fold_plain(index, message, content)
        calls: tuple[ToolCall, ...] | None = ()
        if role == "assistant" and size == 3 and (content is None or (type(content) is str and content)):
            calls = _plain_calls(message.get("tool_calls"))
        elif size != 2 or type(content) is not str or role not in _STANDARD:
            return False
        if calls is None:
            return False
        self._calls, self._open, self._turn_at = calls, list(calls), len(self.steps)
        step = Step(
            index=self._turn_at,
            source=_SOURCES.get(role, Source.AGENT),
            agent=self.agent if role == "assistant" else role,
            content=content or "",
            tool_calls=calls,
            source_index=index,
        )
        self.step_of[index] = step.index
        self.steps.append(step)
        return True

    def _fold_plain(self, index: int, message: dict[str, Any], content: str) -> bool:
        id = message.get("tool_call_id")
        if type(id) is not str or not id:
            return False
        call = next((call for call in (*self._open, *self._calls) if call.id == id), None)
        if call is None:
            return False
        self._answer(index, call, Observation(content=content, call_id=id, tool=call.name))
        return True

    def _answered(self, message: Node) -> ToolCall | None:
        """The call a tool message answers; a second answer to the same call counts as one."""
        call_id = message.scalar_or("tool_call_id")
        if call_id:
            return next((call for call in (*self._open, *self._calls) if call.id == call_id), None)
        name = message.text_or("name")
        return next((call for call in self._open if not name or call.name == name), None)

    def _fold(self, index: int, message: Node, call: ToolCall) -> None:
        self._answer(index, call, _observation(message, call))

    def _answer(self, index: int, call: ToolCall, seen: Observation) -> None:
        self._open = [other for other in self._open if other is not call]
        step = self.steps[self._turn_at]
        self.steps[self._turn_at] = step.answered((*step.observations, seen))
        self.step_of[index] = step.index

    def _turn(self, index: int, message: Node, role: str) -> Step:
        data = message.data
        content, refusal = data.get("content"), data.get("refusal")
        extra = {name: value for name, value in data.items() if name not in _OF_A_TURN}
        if role not in _STANDARD:
            extra["role"] = role
        if isinstance(content, list) or (content == "" and "tool_calls" in message):
            extra["content"] = content
        text = content if isinstance(content, str) else content_text(content, message.at("content"))
        return Step(
            index=len(self.steps),
            source=_SOURCES.get(role, Source.AGENT),
            agent=message.text_or("name") or (self.agent if role == "assistant" else role),
            content=text or (refusal if isinstance(refusal, str) else ""),
            reasoning=message.text_or("reasoning_content"),
            tool_calls=_calls(index, message),
            source_index=index,
            extra=extra,
        )

    def _result(self, index: int, message: Node) -> Step:
        extra = message.rest("content")
        if isinstance(message.raw("content"), list):
            extra["content"] = message.raw("content")
        return Step(
            index=len(self.steps),
            source=Source.ENVIRONMENT,
            agent=message.text_or("name") or "tool",
            content=content_text(message.raw("content"), message.at("content")),
            source_index=index,
            extra=extra,
        )


_CALL, _TYPED_CALL, _FUNCTION = {"id", "function"}, {"id", "type", "function"}, {"name", "arguments"}


def _plain_calls(values: Any) -> tuple[ToolCall, ...] | None:
    """Calls that have the usual fields alone; None if there are none, or others."""
    if type(values) is not list or not values:
        return None
    made = []
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
        made.append(ToolCall(id=id, name=function["name"], arguments=arguments, raw_arguments=raw))
    return tuple(made)


def _calls(index: int, message: Node) -> tuple[ToolCall, ...]:
    if "tool_calls" not in message and "function_call" not in message:
        return ()
    calls = [
        tool_call(node, fallback_id=f"call-{index}-{i}")
        for i, node in enumerate(message.nodes_or("tool_calls"))
    ]
    if "function_call" in message:
        wrapped = Node({"function": message.raw("function_call"), "legacy": True}, message.path)
        calls.append(tool_call(wrapped, fallback_id=f"call-{index}-{len(calls)}"))
    return tuple(calls)


def _observation(message: Node, call: ToolCall) -> Observation:
    extra = message.rest("role", "content", "tool_call_id")
    if isinstance(message.raw("content"), list):
        extra["content"] = message.raw("content")
    return Observation(
        content=content_text(message.raw("content"), message.at("content")),
        call_id=call.id,
        tool=message.text_or("name") or call.name,
        extra=extra,
    )
