"""Events of Claude Code's ``--output-format stream-json`` in order: system, assistant, user and result.

Claude Code writes one line for each content block of a model's message. Lines with the same ``message.id``
are one turn, and their usage is that of the whole message. Events with ``parent_tool_use_id`` come from a
sub-agent. Its first user event is the prompt that the parent wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentguard.trajectory._json_node import JsonNode
from agentguard.trajectory.formats._content_parts import MessageContent, parse_content
from agentguard.trajectory.formats._step_builder import StepBuilder
from agentguard.trajectory.formats._usage import parse_usage
from agentguard.trajectory.model import Source, ToolSpec

_SILENT_TYPES = frozenset({"stream_event", "rate_limit_event", "tool_progress", "tool_use_summary"})
_SILENT_TYPES |= {"auth_status", "control_request", "control_response", "keep_alive"}
"""Progress, parts of messages that follow as a whole, and messages between the client and its host."""
_FACTS = ("session_id", "cwd", "claude_code_version", "permissionMode", "mcp_servers", "agents")
_RESULT_FACTS = (
    *("subtype", "is_error", "duration_ms", "duration_api_ms", "num_turns", "total_cost_usd"),
    *("permission_denials", "usage"),
)


@dataclass(slots=True, kw_only=True)
class EventStream:
    """Run of a stream of events.

    Attributes:
        builder: the steps and the unknown events.
        tools: the offered tools, by name only.
        exit_status: subtype of the result (``success``, ``error_max_turns``, …), or ``error`` for a result
            with ``is_error`` and the subtype ``success``; None without a result.
        extra: facts of the session and of the result.
    """

    builder: StepBuilder = field(default_factory=lambda: StepBuilder(agent="claude"))
    tools: tuple[ToolSpec, ...] = ()
    exit_status: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def parse_events(events: Iterable[JsonNode]) -> EventStream:
    """Return the run of a stream of events. Raises FormatError with the field of a malformed event."""
    stream = EventStream()
    agents: dict[str, str] = {}
    for index, lines in _group_lines(events):
        kind = lines[0].text("type")
        if kind == "assistant":
            _add_assistant_turn(stream.builder, lines, agents, index)
        elif kind == "user":
            _add_user_event(stream.builder, lines[0], index)
        elif kind == "system":
            _read_system_event(stream, lines[0])
        elif kind == "result":
            _read_result_event(stream, lines[0])
        elif kind not in _SILENT_TYPES:
            stream.builder.add_unknown(kind)
    return stream


def _group_lines(events: Iterable[JsonNode]) -> list[tuple[int, list[JsonNode]]]:
    """Return each event with its position; the lines of one assistant message are one group.

    The results of the first calls of a message may be between its lines. The group has the position of the
    first line.
    """
    groups: list[tuple[int, list[JsonNode]]] = []
    latest: dict[str, tuple[str, list[JsonNode]]] = {}
    for index, event in enumerate(events):
        if event.raw("type") != "assistant":
            groups.append((index, [event]))
            continue
        thread = event.scalar_or("parent_tool_use_id")
        id = event.node("message").scalar_or("id")
        latest_id, lines = latest.get(thread, ("", []))
        if id and id == latest_id:
            lines.append(event)
        else:
            latest[thread] = id, lines = id, [event]
            groups.append((index, lines))
    return groups


def _add_assistant_turn(
    builder: StepBuilder, lines: Sequence[JsonNode], agents: dict[str, str], index: int
) -> None:
    content = MessageContent()
    for line in lines:
        message = line.node("message")
        part = parse_content(message.raw("content"), message.field_path("content"))
        content.texts += part.texts
        content.reasoning += part.reasoning
        content.calls += part.calls
        content.unknown_parts += part.unknown_parts
    agents |= {
        call.id: kind
        for call in content.calls
        if isinstance(kind := (call.arguments or {}).get("subagent_type"), str) and kind
    }
    last, parent = lines[-1].node("message"), lines[0].scalar_or("parent_tool_use_id")
    builder.add_turn(
        content.text,
        agent=agents.get(parent, "sub-agent") if parent else "",
        reasoning="\n".join(filter(None, content.reasoning)),
        tool_calls=content.calls,
        source_index=index,
        usage=parse_usage(last.raw("usage")),
        model=last.text_or("model") or None,
        stop_reason=last.text_or("stop_reason") or None,
        unknown_parts=content.unknown_parts,
        extra=_collect_extra(parent),
    )


def _add_user_event(builder: StepBuilder, event: JsonNode, index: int) -> None:
    message, parent = event.node("message"), event.scalar_or("parent_tool_use_id")
    content = parse_content(message.raw("content"), message.field_path("content"))
    for result in content.results:
        builder.add_result(
            result.content,
            call_id=result.call_id,
            is_error=result.is_error,
            source_index=index,
            unknown_parts=result.unknown_parts,
        )
    if content.text or content.unknown_parts:
        builder.add_turn(
            content.text,
            source=Source.SYSTEM if parent else Source.USER,
            source_index=index,
            unknown_parts=content.unknown_parts,
            extra=_collect_extra(parent),
        )


def _collect_extra(parent: str) -> dict[str, str]:
    return {"parent_tool_use_id": parent} if parent else {}


def _read_system_event(stream: EventStream, event: JsonNode) -> None:
    """Read the facts of the session; other system events are notices of the client."""
    if event.raw("subtype") == "init":
        names = (name for name in event.items_or("tools") if isinstance(name, str))
        stream.tools = tuple(ToolSpec(name=name) for name in names)
        stream.extra |= {key: event.raw(key) for key in _FACTS if event.raw(key)}


def _read_result_event(stream: EventStream, event: JsonNode) -> None:
    """Read the end of the session; its text repeats the last turn."""
    subtype = event.text_or("subtype")
    has_hidden_error = event.raw("is_error") is True and subtype == "success"
    stream.exit_status = "error" if has_hidden_error else subtype or None
    stream.extra["result"] = {key: event.raw(key) for key in _RESULT_FACTS if key in event}
