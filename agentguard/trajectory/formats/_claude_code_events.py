"""Conversion of events of Claude Code to runs: lines of a session file or of the stream-json output.

An API message is split over several lines with one ``message.id``: they are one turn, and its usage counts
once. Lines form a tree by ``parentUuid``. Parallel tool calls fork the lines, but not the conversation, so a
result is part of the turn with its call. The remaining forks are edits and retries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from agentguard.trajectory.formats._branch_tree import TreeNode, build_branches
from agentguard.trajectory.formats._claude_code_turn import (
    AGENT,
    API_ERROR,
    INTERRUPTED,
    ClaudeCodeTurn,
    build_client_step,
    build_orphan_step,
    build_user_steps,
    classify_user_text,
    collect_result_extra,
    extract_command,
    extract_error_text,
)
from agentguard.trajectory.formats._content_parts import MessageContent, parse_content
from agentguard.trajectory.formats._step_builder import StepBuilder
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Record, Source, Step, ToolSpec, Trajectory
from agentguard.trajectory.safe_json import dumps

_SYNTHETIC_MODEL = "<synthetic>"
_RUN_FIELDS = {
    "cwd": "cwd",
    "version": "version",
    "claude_code_version": "version",
    "gitBranch": "git_branch",
    "agentId": "agent_id",
    "parent_tool_use_id": "parent_tool_use_id",
    "permissionMode": "permission_mode",
}
_CLIENT_FLAGS = ("isMeta", "isCompactSummary")
_RESULT_FIELDS = ("num_turns", "total_cost_usd", "duration_ms", "duration_api_ms", "is_error")
SILENT_TYPES = frozenset(
    {"progress", "file-history-snapshot", "queue-operation", "custom-title", "ai-title", "agent-name"}
    | {"agent-color", "agent-setting", "last-prompt", "permission-mode", "mode", "pr-link", "tag"}
    | {"worktree-state", "attribution-snapshot", "content-replacement", "speculation-accept", "task-summary"}
    | {"stream_event", "rate_limit_event", "tool_progress", "auth_status", "keep_alive", "tool_use_summary"}
    | {"control_request", "control_response", "prompt_suggestion", "started"}
)
"""Events about the client's own state, and partial messages that a complete message follows."""
MESSAGE_TYPES = frozenset({"user", "assistant", "system", "attachment"})
_SILENT_SUBTYPES = frozenset(
    {"turn_duration", "stop_hook_summary", "microcompact_boundary", "bridge_status", "status", "hook_started"}
    | {"hook_response", "hook_progress", "thinking_tokens", "session_state_changed"}
)
"""System events about the client's own state: timing, hooks that changed nothing, connection."""


_Node = TreeNode[ClaudeCodeTurn]


class ClaudeCodeRun:
    """Assembler of the events of one session, or of one of its sub-agents.

    Args:
        id: id of the run.
        format: name of the importer.
        parent_id: id of the session that started this sub-agent, if it is one.
    """

    def __init__(self, id: str, format: str, *, parent_id: str | None = None) -> None:
        self.id = id
        self._format = format
        self._root: _Node = TreeNode(id="", order=-1, value=ClaudeCodeTurn(source_index=-1))
        self._last_node = self._root
        self._nodes: dict[str, _Node] = {}
        self._turn_of_message: dict[str, _Node] = {}
        self._turn_of_call: dict[str, _Node] = {}
        self._line_digests: dict[str, int] = {}
        self._has_links = False
        self._unknown_parts: Counter[str] = Counter()
        self._extra: dict[str, Any] = {"parent_id": parent_id} if parent_id else {}
        self._tools: tuple[ToolSpec, ...] = ()
        self._exit_status: str | None = None
        self._cost_usd = 0.0
        self._last_agent_turn: ClaudeCodeTurn | None = None

    def __contains__(self, uuid: str) -> bool:
        """Return True if a line with this uuid is part of the run."""
        return uuid in self._nodes

    def add_event(self, event: JsonNode, position: int) -> None:
        """Add an event. Raises FormatError with the field of a malformed event.

        Args:
            event: the line.
            position: number of the line in the source, from 0.
        """
        kind = event.text("type")
        if kind in MESSAGE_TYPES:
            self._add_message(event, kind, position)
        elif kind == "result":
            self._add_result(event)
        elif kind not in SILENT_TYPES:
            self._unknown_parts[kind] += 1
        elif uuid := event.scalar_or("uuid"):
            self._nodes.setdefault(uuid, self._find_parent(event, kind))

    def build_record(self, summaries: Mapping[str, str] | None = None) -> Record:
        """Return the run.

        Args:
            summaries: uuid of the last line of a conversation to the title of the conversation.
        """
        steps, branches = build_branches(self._root, _join_steps)
        if summary := next((text for leaf, text in (summaries or {}).items() if leaf in self._nodes), None):
            self._extra["summary"] = summary
        for branch in branches:
            for step in branch.steps:
                self._unknown_parts.update(step.unknown_parts)
        builder = StepBuilder(agent=AGENT, unknown_parts=self._unknown_parts)
        for step in steps:
            builder.append_step(step)
        return Record(trajectory=self._build_trajectory(builder, branches=branches, tools=self._tools))

    def _add_message(self, event: JsonNode, kind: str, position: int) -> None:
        uuid = event.scalar_or("uuid")
        parent = self._find_parent(event, kind)
        if uuid:
            # The children of a line that cannot be read, or that has no step, follow its parent.
            self._nodes.setdefault(uuid, parent)
        self._collect_run_fields(event)
        if kind == "system":
            node = self._add_system(event, parent, position)
        elif kind == "attachment":
            node = self._add_attachment(event, parent, position)
        elif self._is_repeated(uuid, event):
            return
        elif kind == "assistant":
            node = self._add_assistant(event, parent, position)
        else:
            node = self._add_user(event, parent, position)
        if uuid:
            self._nodes[uuid] = node
        self._last_node = node

    def _add_result(self, event: JsonNode) -> None:
        """Read the end of a run: exit status, duration, and the cost since the previous end."""
        status = event.text_or("subtype")
        is_error = event.boolean_or("is_error")
        self._exit_status = "error" if is_error and status == "success" else status or None
        self._extra |= {key: event.raw(key) for key in _RESULT_FIELDS if key in event}
        total = event.number_or("total_cost_usd")
        if total is not None and (turn := self._last_agent_turn) is not None:
            turn.cost_usd = (turn.cost_usd or 0.0) + max(0.0, total - self._cost_usd)
            self._cost_usd = max(self._cost_usd, total)

    def _build_trajectory(self, builder: StepBuilder, **fields: Any) -> Trajectory:
        last = builder.steps[-1].extra if builder.steps else {}
        status = self._exit_status or next((key for key in (INTERRUPTED, API_ERROR) if last.get(key)), None)
        if not any(step.source is Source.USER for step in builder.steps):
            commands = (extract_command(step.content) for step in builder.steps)
            fields["task"] = next(filter(None, commands), "")
        return builder.build_trajectory(
            self.id, self._format, system_prompts={}, exit_status=status, extra=self._extra, **fields
        )

    def _find_parent(self, event: JsonNode, kind: str) -> _Node:
        for key in ("parentUuid", "logicalParentUuid"):
            if (uuid := event.scalar_or(key)) and uuid in self._nodes:
                self._has_links = True
                return self._nodes[uuid]
        is_first_prompt = kind == "user" and "parentUuid" in event.data and "parentUuid" not in event
        if is_first_prompt and self._has_links and event.raw("isCompactSummary") is not True:
            return self._root
        return self._last_node

    def _is_repeated(self, uuid: str, event: JsonNode) -> bool:
        """Return True if the line is a copy of an earlier line: a resumed session repeats its history."""
        if not uuid:
            return False
        digest, earlier = hash(orjson.dumps(event.raw("message"))), self._line_digests.get(uuid)
        self._line_digests[uuid] = digest
        return digest == earlier

    def _collect_run_fields(self, event: JsonNode) -> None:
        for key, name in _RUN_FIELDS.items():
            if name not in self._extra and (value := event.raw(key)) is not None:
                self._extra[name] = value

    def _add_node(self, parent: _Node, turn: ClaudeCodeTurn, id: str) -> _Node:
        order = turn.source_index
        node = TreeNode(id=id or f"line-{order}", order=order, value=turn)
        parent.children.append(node)
        return node

    def _add_steps(self, parent: _Node, position: int, event: JsonNode, steps: Sequence[Step]) -> _Node:
        if not steps:
            return parent
        turn = ClaudeCodeTurn(source_index=position, steps=tuple(steps))
        return self._add_node(parent, turn, event.scalar_or("uuid"))

    def _add_assistant(self, event: JsonNode, parent: _Node, position: int) -> _Node:
        message = event.node("message")
        content = _parse_message_content(message, position)
        if message.raw("model") == _SYNTHETIC_MODEL or event.raw("isApiErrorMessage") is True:
            return self._add_synthetic_message(event, parent, position, content)
        id = message.scalar_or("id") or event.scalar_or("requestId")
        node = self._turn_of_message.get(id) if id else None
        if node is None:
            turn = ClaudeCodeTurn(source_index=position, agent=self._find_agent(event) or AGENT)
            node = self._add_node(parent, turn, event.scalar_or("uuid"))
            if id:
                self._turn_of_message[id] = node
        turn = node.value
        turn.add_message(message, content, event.timestamp_or("timestamp"))
        self._last_agent_turn = turn
        for call in content.calls:
            self._turn_of_call[call.id] = node
        return node

    def _find_agent(self, event: JsonNode) -> str:
        """Return the kind of the sub-agent that a call of this run started; empty for other events."""
        call_id = event.scalar_or("parent_tool_use_id")
        node = self._turn_of_call.get(call_id) if call_id else None
        if node is None:
            return ""
        calls = (call.arguments or {} for call in node.value.content.calls if call.id == call_id)
        kind = next(calls, {}).get("subagent_type")
        return kind if isinstance(kind, str) and kind else "sub-agent"

    def _add_synthetic_message(
        self, event: JsonNode, parent: _Node, position: int, content: MessageContent
    ) -> _Node:
        """Add a message that the client wrote in the name of the model: an API error, or a placeholder."""
        is_error = event.raw("isApiErrorMessage") is True
        step = build_client_step(
            content.text,
            Source.ENVIRONMENT if is_error else Source.SYSTEM,
            event,
            position,
            extra={API_ERROR: True, "is_error": True} if is_error else {},
            unknown_parts=content.unknown_parts,
        )
        return self._add_steps(parent, position, event, [step])

    def _add_user(self, event: JsonNode, parent: _Node, position: int) -> _Node:
        content = _parse_message_content(event.node("message"), position)
        steps = []
        node = parent
        extra, ended_at = collect_result_extra(event), event.timestamp_or("timestamp")
        for result in content.results:
            owner = self._turn_of_call.get(result.call_id) if result.call_id else None
            if owner is None or owner.value is not self._last_agent_turn:
                # The result of an earlier turn would show that turn later information.
                steps.append(build_orphan_step(result, event, position))
            else:
                owner.value.results.append((result, ended_at, extra))
                node = owner
        # The parent agent, not the user, writes the prompt of a sub-agent.
        is_client = any(event.raw(key) is True for key in _CLIENT_FLAGS) or bool(self._find_agent(event))
        steps += build_user_steps(content, event, position, is_client=is_client)
        if any(step.extra.get(INTERRUPTED) for step in steps) and self._last_agent_turn is not None:
            self._last_agent_turn.stop_reason = self._last_agent_turn.stop_reason or INTERRUPTED
        return self._add_steps(node, position, event, steps)

    def _add_attachment(self, event: JsonNode, parent: _Node, position: int) -> _Node:
        attachment = event.node("attachment")
        if attachment.text_or("type") == "queued_command":
            content = parse_content(attachment.raw("prompt"), attachment.field_path("prompt"))
            steps = build_user_steps(content, event, position, is_client=False)
            return self._add_steps(parent, position, event, steps)
        texts = (attachment.raw(key) for key in ("content", "text", "prompt"))
        text = next((text for text in texts if isinstance(text, str)), None)
        step = build_client_step(
            text if text is not None else dumps(attachment.data).decode(), Source.SYSTEM, event, position
        )
        return self._add_steps(parent, position, event, [step])

    def _add_system(self, event: JsonNode, parent: _Node, position: int) -> _Node:
        subtype, content = event.text_or("subtype"), event.raw("content")
        if subtype == "init":
            names = event.items_or("tools")
            self._tools = tuple(ToolSpec(name=name) for name in names if isinstance(name, str))
        elif subtype in ("api_error", "api_retry"):
            text = extract_error_text(event)
            extra = {API_ERROR: True, "is_error": True}
            step = build_client_step(text, Source.ENVIRONMENT, event, position, extra=extra)
            return self._add_steps(parent, position, event, [step])
        elif isinstance(content, str) and subtype not in _SILENT_SUBTYPES:
            source = classify_user_text(content)
            step = build_client_step(
                content, Source.SYSTEM if source is Source.USER else source, event, position
            )
            return self._add_steps(parent, position, event, [step])
        elif subtype == "compact_boundary":
            step = build_client_step("Conversation compacted", Source.SYSTEM, event, position)
            return self._add_steps(parent, position, event, [step])
        elif subtype not in _SILENT_SUBTYPES:
            self._unknown_parts[f"system:{subtype}"] += 1
        return parent


def _join_steps(path: Sequence[_Node]) -> tuple[Step, ...]:
    steps: list[Step] = []
    for node in path[1:]:
        for step in node.value.build_steps():
            steps.append(step.with_index(len(steps)))
    return tuple(steps)


def _parse_message_content(message: JsonNode, position: int) -> MessageContent:
    if "content" not in message.data:
        raise message.build_error("content", "missing")
    return parse_content(
        message.raw("content"), message.field_path("content"), call_prefix=f"call-{position}"
    )
