"""Event stream of ``codex exec --json``: one thread event a line.

An item is complete in its ``item.completed`` line; an item without one was interrupted. The stream does not
contain the prompt, so the run has no task. Source of the field names: the Codex CLI's ``exec_events.rs``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from agentguard.trajectory.formats._content_parts import parse_content
from agentguard.trajectory.formats._line_format import SessionFormat
from agentguard.trajectory.formats._step_builder import StepBuilder
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Record, Source, ToolCall
from agentguard.trajectory.safe_json import dumps, parse_arguments
from agentguard.trajectory.usage import parse_usage

_AGENT: Final = "codex"
_THREAD_STARTED: Final = "thread.started"
_ITEM_EVENTS: Final = frozenset({"item.started", "item.updated", "item.completed"})
_EVENTS: Final = frozenset({_THREAD_STARTED, "turn.started", "turn.completed", "turn.failed"}) | _ITEM_EVENTS
_FAILED: Final = frozenset({"failed", "declined"})


class _ExecRun:
    """Assembler of the events of one thread."""

    def __init__(self, name: str) -> None:
        self._id = name
        self._builder = StepBuilder(agent=_AGENT)
        self._open_items: dict[str, tuple[JsonNode, int]] = {}
        self._reasoning: list[str] = []
        self._exit_status: str | None = None
        self._plan: list[Any] = []

    def is_next_session(self, line: JsonNode) -> bool:
        """Return True for the start of another thread."""
        return bool(line.raw("type") == _THREAD_STARTED)

    def add_line(self, line: JsonNode, position: int) -> None:
        """Add an event. Raises FormatError with the field of a malformed one."""
        event, kind = line, line.text("type")
        if kind == _THREAD_STARTED:
            self._id = event.scalar_or("thread_id") or self._id
        elif kind in _ITEM_EVENTS:
            item = event.node("item")
            id = item.scalar_or("id") or f"item-{position}"
            if kind == "item.completed":
                self._open_items.pop(id, None)
                self._add_item(item, id, position, is_complete=True)
            else:
                self._open_items[id] = item, position
        elif kind == "turn.completed":
            self._add_usage(event)
        elif kind == "turn.failed":
            self._exit_status = "error"
            self._add_error(event.node_or("error").text_or("message"), position)
        elif kind == "error":
            self._add_error(event.text_or("message"), position)
        elif kind != "turn.started":
            self._builder.add_unknown(kind)

    def build_record(self) -> Record:
        """Return the run; an item that was not completed is a call without a result."""
        for id, (item, position) in self._open_items.items():
            self._add_item(item, id, position, is_complete=False)
        if self._reasoning:
            self._add_turn("", len(self._builder.steps))
        extra = {"plan": self._plan} if self._plan else {}
        run = self._builder.build_trajectory(
            self._id, FORMAT.name, exit_status=self._exit_status, extra=extra
        )
        return Record(trajectory=run)

    def _add_item(self, item: JsonNode, id: str, position: int, *, is_complete: bool) -> None:
        kind = item.text_or("type") or item.text_or("item_type")
        if kind == "reasoning":
            self._reasoning.append(item.text_or("text"))
        elif kind in ("agent_message", "assistant_message"):
            self._add_turn(item.text_or("text"), position)
        elif kind == "command_execution":
            call = ToolCall(id=id, name="shell", arguments={"command": item.text_or("command")})
            exit_code = item.integer_or("exit_code")
            extra = {} if exit_code is None else {"exit_code": exit_code}
            self._add_call(call, item, item.text_or("aggregated_output"), position, is_complete, extra)
        elif kind == "file_change":
            changes = [dict(one.data) for one in item.nodes_or("changes")]
            call = ToolCall(id=id, name="file_change", arguments={"changes": changes})
            self._add_call(call, item, item.text_or("status"), position, is_complete)
        elif kind == "mcp_tool_call":
            self._add_mcp_call(item, id, position, is_complete)
        elif kind == "web_search":
            call = ToolCall(id=id, name="web_search", arguments={"query": item.text_or("query")})
            self._add_turn("", position, call)
        elif kind == "todo_list":
            self._plan = item.items_or("items")
        elif kind == "error":
            self._add_error(item.text_or("message"), position)
        else:
            self._builder.add_unknown(f"item {kind or 'without a type'}")

    def _add_mcp_call(self, item: JsonNode, id: str, position: int, is_complete: bool) -> None:
        arguments, text = parse_arguments(item.raw("arguments"), item.field_path("arguments"))
        name = "__".join(part for part in ("mcp", item.text_or("server"), item.text_or("tool")) if part)
        call = ToolCall(id=id, name=name, arguments=arguments, raw_arguments=text)
        result = item.node_or("result")
        content = parse_content(result.raw("content"), result.field_path("content"))
        structured = result.raw("structured_content")
        text = content.text or (dumps(structured).decode() if structured else "")
        error = item.node_or("error").text_or("message")
        self._add_call(call, item, error or text, position, is_complete, unknown_parts=content.unknown_parts)

    def _add_call(
        self,
        call: ToolCall,
        item: JsonNode,
        result: str,
        position: int,
        is_complete: bool,
        extra: dict[str, Any] | None = None,
        unknown_parts: Sequence[str] = (),
    ) -> None:
        self._add_turn("", position, call)
        if is_complete:
            status = item.text_or("status")
            is_error = status in _FAILED if status else None
            self._builder.add_result(
                result, call_id=call.id, is_error=is_error, extra=extra, unknown_parts=unknown_parts
            )

    def _add_turn(self, content: str, position: int, *calls: ToolCall) -> None:
        reasoning, self._reasoning = "\n\n".join(self._reasoning), []
        self._builder.add_turn(content, reasoning=reasoning, tool_calls=calls, source_index=position)

    def _add_error(self, message: str, position: int) -> None:
        if message:
            self._builder.add_turn(
                message,
                source=Source.ENVIRONMENT,
                agent="client",
                source_index=position,
                extra={"is_error": True},
            )

    def _add_usage(self, event: JsonNode) -> None:
        """Add the usage of a turn, which may have several requests, to its last step."""
        usage, steps = parse_usage(event.raw("usage")), self._builder.steps
        last = next((step for step in reversed(steps) if step.source is Source.AGENT), None)
        if usage is not None and last is not None:
            steps[last.index] = last.with_usage(usage, last.model)


class CodexExec(SessionFormat):
    """Importer of the event stream of ``codex exec --json``."""

    name = "codex_exec"
    summary = "Event streams of codex exec --json (JSON Lines)"

    def score_line(self, line: dict[str, Any]) -> float:
        """Return a positive score for a thread event."""
        kind = line.get("type")
        if not isinstance(kind, str) or kind not in _EVENTS:
            return 0.0
        if kind == _THREAD_STARTED:
            return 0.97 if "thread_id" in line else 0.0
        return 0.96 if kind.startswith("turn.") or isinstance(line.get("item"), dict) else 0.0

    def start_run(self, name: str) -> _ExecRun:
        """Return the assembler of a thread."""
        return _ExecRun(name)


FORMAT = CodexExec()
