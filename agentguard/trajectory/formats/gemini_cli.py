"""Gemini CLI: session files (``~/.gemini/tmp/<project>/chats/session-*``), one JSON object or JSON Lines.

The lines are a log: a line with the id of an earlier message replaces that message, ``$rewindTo`` removes a
message and the later ones, ``$set`` changes facts of the session. A call contains its result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from agentguard.trajectory.formats._branch_tree import TreeNode, build_branches
from agentguard.trajectory.formats._content_parts import MessageContent, parse_content
from agentguard.trajectory.formats._line_format import SessionFormat
from agentguard.trajectory.formats._step_builder import StepBuilder
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Record, Source, Step, ToolCall
from agentguard.trajectory.safe_json import parse_arguments
from agentguard.trajectory.usage import parse_usage

_AGENT = "gemini"
_NOTICES = {"info": Source.SYSTEM, "warning": Source.SYSTEM, "error": Source.ENVIRONMENT}
_FAILED_STATUSES = ("error", "cancelled")
_CALL_FIELDS = (
    *("id", "name", "args", "result", "status", "timestamp"),
    *("displayName", "description", "renderOutputAsMarkdown", "resultDisplay"),
)
"""Fields of a call that the importer reads, or that only describe its display."""
_TURN_FIELDS = ("id", "type", "content", "timestamp", "thoughts", "toolCalls", "tokens", "model")
_SESSION_FIELDS = ("projectHash", "summary", "directories", "kind")

_Node = TreeNode[JsonNode | None]


class GeminiCli(SessionFormat):
    """Importer of Gemini CLI's session files."""

    name = "gemini_cli"
    summary = "Gemini CLI sessions (JSON, or JSON Lines with rewinds)"

    def score_line(self, line: dict[str, Any]) -> float:
        """Return a positive score for the head of a session, a change of it, or a message of Gemini."""
        if "sessionId" in line and "projectHash" in line:
            return 0.98
        if isinstance(line.get("$set"), dict) or isinstance(line.get("$rewindTo"), str):
            return 0.9
        return 0.9 if line.get("type") == _AGENT and "id" in line else 0.0

    def start_run(self, name: str) -> _Session:
        """Return the replay of a session."""
        return _Session(name)


class _Session:
    """Replay of the lines of one session."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._head: dict[str, Any] = {}
        self._root: _Node = TreeNode(id="", order=-1, value=None)
        self._last = self._root
        self._parents: dict[str, _Node] = {}
        self._nodes: dict[str, _Node] = {}
        self._order = 0

    def is_next_session(self, line: JsonNode) -> bool:
        """Return True for the head of another session."""
        id = line.scalar_or("sessionId")
        return bool(id) and "sessionId" in self._head and id != self._head["sessionId"]

    def add_line(self, line: JsonNode, position: int) -> None:
        """Apply a line. Raises FormatError with the field of a malformed line."""
        if "$rewindTo" in line:
            self._rewind(line.text("$rewindTo"), position)
        elif "$set" in line:
            self._set_facts(line.node("$set"))
        elif "sessionId" in line:
            self._set_facts(line)
        else:
            self._add_message(line)

    def build_record(self) -> Record:
        """Return the run."""
        steps, branches = build_branches(self._root, _build_steps)
        unknown_parts: Counter[str] = Counter()
        for branch in branches:
            for step in branch.steps:
                unknown_parts.update(step.unknown_parts)
        builder = StepBuilder(agent=_AGENT, unknown_parts=unknown_parts)
        for step in steps:
            builder.append_step(step)
        run = builder.build_trajectory(
            str(self._head.get("sessionId") or self._name),
            FORMAT.name,
            system_prompts={},
            branches=branches,
            extra={key: self._head[key] for key in _SESSION_FIELDS if self._head.get(key) is not None},
        )
        return Record(trajectory=run)

    def _set_facts(self, facts: JsonNode) -> None:
        """Set facts of the session; messages that they replace stay, because the model has seen them."""
        self._head |= facts.extra_fields("messages")
        for message in facts.nodes_or("messages"):
            self._add_message(message)

    def _add_message(self, message: JsonNode) -> None:
        kind, id = message.text("type"), message.scalar("id")
        _read_message(StepBuilder(), message, kind, 0)  # an error names the line, not the end of the file
        if (node := self._nodes.get(id)) is not None:
            node.value = message
            return
        self._parents[id] = self._last
        self._nodes[id] = self._last = self._add_node(self._last, id, message)

    def _add_node(self, parent: _Node, id: str, message: JsonNode | None) -> _Node:
        node: _Node = TreeNode(id=id, order=self._order, value=message)
        self._order += 1
        parent.children.append(node)
        return node

    def _rewind(self, id: str, position: int) -> None:
        """Continue before a message; an unknown message means the start."""
        parent = self._parents.get(id, self._root)
        self._last = self._add_node(parent, f"rewind-{position}", None)


def _build_steps(path: Sequence[_Node]) -> tuple[Step, ...]:
    builder = StepBuilder(agent=_AGENT)
    for node in path:
        if node.value is not None:
            _read_message(builder, node.value, node.value.text("type"), node.order)
    return tuple(builder.steps)


def _read_message(builder: StepBuilder, message: JsonNode, kind: str, order: int) -> None:
    content = parse_content(message.raw("content"), message.field_path("content"))
    time = message.timestamp_or("timestamp")
    if kind == _AGENT:
        _add_turn(builder, message, content, order)
    elif kind == "user":
        builder.add_turn(
            content.text,
            source=Source.USER,
            source_index=order,
            started_at=time,
            unknown_parts=content.unknown_parts,
        )
    elif kind in _NOTICES:
        builder.add_turn(
            content.text,
            source=_NOTICES[kind],
            agent="client",
            source_index=order,
            started_at=time,
            unknown_parts=content.unknown_parts,
            extra={"is_error": True} if kind == "error" else {},
        )
    else:
        builder.add_turn(source=Source.SYSTEM, agent="client", source_index=order, unknown_parts=(kind,))


def _add_turn(builder: StepBuilder, message: JsonNode, content: MessageContent, order: int) -> None:
    calls = list(message.nodes_or("toolCalls"))
    thoughts = [
        ": ".join(filter(None, (thought.text_or("subject"), thought.text_or("description"))))
        for thought in message.nodes_or("thoughts")
    ]
    unread_thoughts = ["thought"] * thoughts.count("")
    ids = [call.scalar_or("id") or f"call-{order}-{place}" for place, call in enumerate(calls)]
    builder.add_turn(
        content.text,
        reasoning="\n".join(filter(None, (*thoughts, *content.reasoning))),
        tool_calls=[_parse_call(call, id) for call, id in zip(calls, ids, strict=True)],
        source_index=order,
        started_at=message.timestamp_or("timestamp"),
        usage=parse_usage(message.raw("tokens")),
        model=message.text_or("model") or None,
        unknown_parts=[*content.unknown_parts, *unread_thoughts],
        extra=message.nonempty_extra_fields(*_TURN_FIELDS),
    )
    for call, id in zip(calls, ids, strict=True):
        _add_result(builder, call, id)


def _parse_call(call: JsonNode, id: str) -> ToolCall:
    arguments, raw = parse_arguments(call.raw("args"), call.field_path("args"))
    return ToolCall(
        id=id,
        name=call.text_or("name"),
        arguments=arguments,
        raw_arguments=raw,
        extra=call.extra_fields(*_CALL_FIELDS),
    )


def _add_result(builder: StepBuilder, call: JsonNode, id: str) -> None:
    status = call.text_or("status")
    content = parse_content(call.raw("result"), call.field_path("result"))
    if "result" not in call and status not in _FAILED_STATUSES:
        return
    texts = [_unwrap_response(part) for part in _list_parts(call.raw("result"))]
    text = "\n".join(text for text in texts if text is not None)
    builder.add_result(
        text or "\n".join([*content.texts, *(result.content for result in content.results)]),
        call_id=id,
        is_error=status in _FAILED_STATUSES if status else None,
        ended_at=call.timestamp_or("timestamp"),
        unknown_parts=content.unknown_parts,
        extra={"status": status} if status == "cancelled" else {},
    )


def _list_parts(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _unwrap_response(part: Any) -> str | None:
    """Return the text of a function response ``{"output": text}`` or ``{"error": text}``."""
    response = part.get("functionResponse") if isinstance(part, dict) else None
    inner = response.get("response") if isinstance(response, dict) else None
    if not isinstance(inner, dict) or len(inner) != 1:
        return None
    return next(
        (text for key, text in inner.items() if key in ("output", "error") and isinstance(text, str)), None
    )


FORMAT = GeminiCli()
