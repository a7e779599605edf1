"""Chats whose actions are text and whose results are user turns: mini-swe-agent, SWE-smith, ReAct.

An action in the text of an agent (see ``_action_parser.py``) becomes a tool call, and the next message its
result. A record is a list of messages, or an object with ``messages``, ``trajectory`` or ``conversations`` (a
list, or its JSON text). A message has ``role`` and ``content``, ``role`` and ``text``, or ``from`` and
``value``.

mini-swe-agent 2 writes native tool calls or text, and its own fields under ``extra`` of a message. The raw
response and the untruncated output repeat the content, so the importer reads usage, cost and error from them
and omits the rest. It rejects a malformed answer with a user message that has the answer in
``model_response``: the answer becomes a turn, the message a step of the environment. The role ``exit`` ends
the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agentguard.errors import FormatError
from agentguard.trajectory.formats._action_parser import (
    HARNESS_COMMANDS,
    SHELL_TOOL,
    find_declared_commands,
    parse_text_actions,
)
from agentguard.trajectory.formats._chat_messages import is_chat_message, parse_chat
from agentguard.trajectory.formats._content_parts import parse_content
from agentguard.trajectory.formats._label_fields import infer_failed, split_labels
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Annotation, Record, ToolCall, Trajectory
from agentguard.trajectory.safe_json import loads
from agentguard.trajectory.usage import add_run_totals, parse_usage

_MINI = "mini-swe-agent"
_MAX_SAMPLED_MESSAGES = 40
_RESULT_PATTERN = re.compile(
    r"\s*(?:<returncode>|<output>|<exception>|<warning>|<observation>|<tool_response>|observation(?: ?\d+)?:"
    r"|execution result of \[)",
    re.IGNORECASE,
)
_PROMPT_PATTERN = re.compile(r"\nbash-\$\s*$")
_PREFIX_PATTERN = re.compile(r"\s*observation(?: ?\d{1,4})?:[ \t]*\n?", re.IGNORECASE)
_AGENT_ROLES = ("assistant", "ai", "model", "gpt")
_SUBMITTED = "submitted"
_MESSAGE_FIELDS = ("messages", "trajectory", "conversations")
_SPELLINGS = (("role", "content"), ("role", "text"), ("from", "value"))
_READ_FIELDS = (
    *("actions", "response", "raw_output", "cost", "timestamp", "exception_info"),
    *("exit_status", "submission", "model_response"),
)


class TextActions:
    """Importer of chats with actions in the text."""

    name = "text_actions"
    summary = "Chats with actions in the text: mini-swe-agent, SWE-smith, ReAct"

    def score_match(self, value: Any) -> float:
        """Return a positive score for mini-swe-agent's mark, or an action in a text with its result."""
        envelope = value if isinstance(value, Mapping) else {}
        if str(envelope.get("trajectory_format", "")).startswith(_MINI):
            return 0.97
        try:
            messages = _load_messages(envelope.get(_find_field(envelope))) if envelope else value
        except FormatError:
            return 0.0
        if not isinstance(messages, list) or not messages:
            return 0.0
        sample = [_respell(message) for message in messages[:_MAX_SAMPLED_MESSAGES]]
        if not all(is_chat_message(one) and not one.get("tool_calls") for one in sample):
            return 0.0
        return 0.9 if any(map(_is_action_with_result, sample, sample[1:])) else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of a list of messages or of an object that has one."""
        node = JsonNode.from_value({"messages": value} if isinstance(value, list) else value)
        key = _find_field(node.data)
        messages = JsonNode({key: _load_messages(node.raw(key))})
        converter = _Converter()
        for index, message in enumerate(messages.nodes(key)):
            converter.add(index, JsonNode(_respell(message.data), message.path))
        chat = parse_chat(converter.messages, agent="agent")
        positions = converter.positions
        steps = (
            replace(step, source_index=positions[step.source_index])
            if step.source_index is not None
            else step
            for step in chat.steps
        )
        facts, judged = split_labels(node.extra_fields(key, "instance_id", "id", "info", "exit_status"))
        info, judged_info = split_labels(node.node_or("info").data)
        judged |= {"info": judged_info} if judged_info else {}
        status = info.pop("exit_status", None) or node.raw("exit_status") or converter.exit_status
        run = Trajectory(
            id=node.scalar_or("instance_id") or node.scalar_or("id") or name,
            format=self.name,
            task=chat.task,
            steps=tuple(steps),
            system_prompts=chat.system_prompts,
            exit_status=status if isinstance(status, str) else None,
            unknown_parts=chat.unknown_parts,
            extra={**facts, **({"info": info} if info else {})},
        )
        yield Record(
            trajectory=add_run_totals(run, [parse_usage(info.get("model_stats"))]),
            annotation=Annotation(failed=infer_failed(judged | judged_info), extra=judged),
        )


def _find_field(envelope: Mapping[str, Any]) -> str:
    return next((key for key in _MESSAGE_FIELDS if key in envelope), _MESSAGE_FIELDS[0])


def _respell(message: Any) -> Any:
    """Return a message with ``role`` and ``content``; the prompt of a system message may be a field."""
    if not isinstance(message, Mapping) or "content" in message:
        return message
    role, text = next((one for one in _SPELLINGS if set(one) <= message.keys()), _SPELLINGS[0])
    if role not in message or text not in message:
        return message
    others = {key: value for key, value in message.items() if key not in (role, text, "system_prompt")}
    return {**others, "role": message[role], "content": message[text] or message.get("system_prompt")}


def _load_messages(value: Any) -> Any:
    """Return messages; SWE-smith writes them as JSON text."""
    return loads(value) if isinstance(value, str) and value.lstrip().startswith("[") else value


def _is_action_with_result(message: Any, following: Any) -> bool:
    text, result = message["content"], following["content"]
    return (
        message["role"] in _AGENT_ROLES
        and following["role"] not in _AGENT_ROLES
        and isinstance(text, str)
        and isinstance(result, str)
        and bool(_RESULT_PATTERN.match(result) or _PROMPT_PATTERN.search(result))
        and bool(parse_text_actions(text, prefix="call"))
    )


@dataclass(slots=True, kw_only=True)
class _Converter:
    """Converter to messages with native tool calls and results.

    Attributes:
        messages: the messages so far.
        positions: index of the source message of each message.
        exit_status: status of the message with the role ``exit``.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    exit_status: str | None = None
    _pending_ids: list[str] = field(default_factory=list)
    _has_text_calls: bool = False
    _commands: frozenset[str] = HARNESS_COMMANDS

    def add(self, index: int, message: JsonNode) -> None:
        """Add a message of the source. Raises FormatError with the field."""
        if message.raw("type") == "function_call_output":
            id = message.scalar("call_id")
            self._add_result(index, message, {"tool_call_id": id, "content": message.raw("output")})
            return
        if message.raw("object") == "response":
            self._add_answer(index, message, _convert_response(message))
            return
        role = message.text("role")
        if role in _AGENT_ROLES:
            self._add_answer(index, message, message.raw("content"))
        elif role == "exit":
            self._add_exit(index, message)
        elif role == "system":
            self._commands = find_declared_commands(self._read_text(message))
            self._append(index, {**message.data})
        else:
            self._add_input(index, message, role)

    def _append(self, index: int, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self.positions.append(index)

    def _add_answer(self, index: int, message: JsonNode, content: Any) -> None:
        data = {**message.extra_fields("extra", "output", "object"), "role": "assistant", "content": content}
        data |= _read_extra(message)
        native_calls = message.raw("tool_calls") or (content if message.raw("object") == "response" else None)
        self._has_text_calls = not native_calls
        if isinstance(native_calls, list):
            ids = (call.get("id") for call in native_calls if isinstance(call, dict))
            self._pending_ids = [id for id in ids if isinstance(id, str)]
        else:
            calls = self._find_calls(index, message)
            self._pending_ids = [call.id for call in calls]
            data.pop("tool_calls", None)
            data |= {"tool_calls": [_format_call(call) for call in calls]} if calls else {}
        self._append(index, data)

    def _find_calls(self, index: int, message: JsonNode) -> tuple[ToolCall, ...]:
        actions = message.node_or("extra").raw("actions")
        if isinstance(actions, list) and all(isinstance(one, dict) and "command" in one for one in actions):
            lines = (ToolCall(id="", name=SHELL_TOOL, arguments={"command": a["command"]}) for a in actions)
            return tuple(replace(call, id=f"call-{index}-{n}") for n, call in enumerate(lines))
        return parse_text_actions(self._read_text(message), prefix=f"call-{index}", commands=self._commands)

    def _add_exit(self, index: int, message: JsonNode) -> None:
        status = message.node_or("extra").raw("exit_status")
        self.exit_status = status if isinstance(status, str) else None
        text = self._read_text(message)
        if text and self._pending_ids and str(status).lower() == _SUBMITTED:
            self._add_result(index, message, {"tool_call_id": self._pending_ids[0], "content": text})
        elif text:
            self._append(index, {"role": "environment", "name": "exit", "content": text})

    def _add_input(self, index: int, message: JsonNode, role: str) -> None:
        extra = message.node_or("extra")
        if "interrupt_type" in extra:
            if answer := extra.text_or("model_response"):
                self._append(index, {"role": "assistant", "content": answer, **_read_extra(message)})
            self._append(index, {"role": "environment", "content": message.raw("content")})
        elif role in ("tool", "function"):
            self._add_result(index, message, dict(message.extra_fields("extra")))
        elif self._pending_ids and self._has_text_calls:
            content = message.raw("content")
            content = _PREFIX_PATTERN.sub("", content, count=1) if isinstance(content, str) else content
            fields = message.extra_fields("role", "name", "content", "extra")
            self._add_result(
                index, message, fields | {"tool_call_id": self._pending_ids[0], "content": content}
            )
        else:
            self._append(index, {**message.extra_fields("extra"), **_read_extra(message)})

    def _add_result(self, index: int, message: JsonNode, data: dict[str, Any]) -> None:
        id = data.get("tool_call_id")
        self._pending_ids = [pending for pending in self._pending_ids if pending != id]
        self._append(index, {**data, "role": "tool", **_read_extra(message)})

    @staticmethod
    def _read_text(message: JsonNode) -> str:
        return parse_content(message.raw("content"), message.field_path("content")).text


def _convert_response(message: JsonNode) -> list[dict[str, Any]]:
    """Return the output items of a Responses API answer as content parts."""
    parts: list[dict[str, Any]] = []
    for item in message.nodes_or("output"):
        if item.raw("type") == "message":
            parts += [part for part in item.items_or("content") if isinstance(part, dict)]
        elif item.raw("type") == "function_call":
            parts.append({**item.data, "id": item.raw("call_id") or item.raw("id")})
        else:
            parts.append(dict(item.data))
    return parts


def _read_extra(message: JsonNode) -> dict[str, Any]:
    """Return the fields of a message for mini-swe-agent's ``extra``: usage, cost, time and error flag."""
    extra = message.node_or("extra")
    fields: dict[str, Any] = {}
    response = extra.raw("response")
    usage = response.get("usage") if isinstance(response, Mapping) else message.raw("usage")
    if isinstance(usage, Mapping) or "cost" in extra:
        cost = {"cost": extra.raw("cost")} if "cost" in extra else {}
        fields["usage"] = {**(usage if isinstance(usage, Mapping) else {}), **cost}
    if "timestamp" in extra:
        fields["timestamp"] = extra.raw("timestamp")
    if extra.raw("exception_info"):
        fields |= {"is_error": True, "exception_info": extra.raw("exception_info")}
    remaining_fields = extra.extra_fields(*_READ_FIELDS)
    return fields | ({"extra": remaining_fields} if remaining_fields else {})


def _format_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "function": {"name": call.name, "arguments": call.raw_arguments or call.arguments}}


FORMAT = TextActions()
