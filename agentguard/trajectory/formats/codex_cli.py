"""Codex CLI: rollout files (``~/.codex/sessions/YYYY/MM/DD/rollout-*.jsonl``).

``response_item`` lines have items of the Responses API. ``event_msg`` lines repeat them for the display; only
token counts, exit codes, errors, interruptions and rollbacks are read from them. The lines of files from
before version 0.40 are the items themselves.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from agentguard.errors import FormatError
from agentguard.trajectory.formats._line_format import SessionFormat
from agentguard.trajectory.formats._responses_items import ResponseTurns
from agentguard.trajectory.formats._step_builder import StepBuilder
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Branch, Observation, Record, Source, Step
from agentguard.trajectory.safe_json import dumps, loads
from agentguard.trajectory.usage import parse_usage, sum_usages

_LINE_TYPES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
_AGENT, _CLIENT = "codex", "client"
_CLIENT_PREFIXES = (
    *("<environment_context>", "<user_instructions>", "# AGENTS.md instructions", "<turn_aborted>"),
    *("<user_shell_command>", "<skill>", "<permissions instructions>", "<subagent_notification>"),
)
_SILENT_ITEMS = frozenset({"ghost_snapshot", "compaction", "compaction_summary", "compaction_trigger"})
"""Items for the client's undo, and encrypted summaries."""
_SILENT_LINES = frozenset({"turn_context", "state", "world_state", "inter_agent_communication_metadata"})
_META_FIELDS = {
    "cwd": "cwd",
    "cli_version": "version",
    "originator": "originator",
    "source": "source",
    "forked_from_id": "forked_from_id",
    "model_provider": "model_provider",
}
_Outcome = tuple[bool, int | None]
"""Error flag of a result, and the exit code if the tool has one."""


class CodexCli(SessionFormat):
    """Importer of Codex CLI's rollout files."""

    name = "codex_cli"
    summary = "Codex CLI rollouts (JSON Lines), including those of versions before 0.40"

    def score_line(self, line: dict[str, Any]) -> float:
        """Return a positive score for a line with a payload, or a head or state line of an older file."""
        if isinstance(line.get("payload"), dict):
            kind = line.get("type")
            return 0.97 if isinstance(kind, str) and kind in _LINE_TYPES else 0.0
        is_old_head = line.keys() >= {"id", "timestamp", "instructions"} and "type" not in line
        return 0.9 if is_old_head or line.get("record_type") == "state" else 0.0

    def start_run(self, name: str) -> CodexRun:
        """Return the assembler of a rollout."""
        return CodexRun(self.name, name)


class CodexRun:
    """Assembler of the lines of one session.

    Args:
        format: name of the importer.
        name: id of the run if the session has no id.
    """

    def __init__(self, format: str, name: str) -> None:
        self._format, self._name = format, name
        self._id: str | None = None
        self._turns = ResponseTurns(agent=_AGENT)
        self._positions: list[int] = []
        self._branches: list[Branch] = []
        self._outcomes: dict[str, _Outcome] = {}
        self._total_usage: Any = None
        self._model: str | None = None
        self._exit_status: str | None = None
        self._instructions = ""
        self._unknown_parts: Counter[str] = Counter()
        self._extra: dict[str, Any] = {}

    def is_next_session(self, line: JsonNode) -> bool:
        """Return True if a line begins another session; a fork repeats the head of its origin."""
        head = _find_head(line)
        id = head.scalar_or("id") if head is not None else ""
        known = (self._id, self._extra.get("forked_from_id"))
        return bool(id) and self._id is not None and id not in known

    def add_line(self, line: JsonNode, position: int) -> None:
        """Add a line. Raises FormatError with the field of a malformed line."""
        head = _find_head(line)
        if head is not None:
            self._add_head(head)
            return
        kind = line.text_or("type") or line.text_or("record_type")
        payload = line.node("payload") if "payload" in line else line
        time = line.timestamp_or("timestamp")
        if kind == "turn_context":
            self._model = payload.text_or("model") or self._model
        elif kind == "event_msg":
            self._add_event(payload, position, time)
        elif kind == "compacted":
            self._add_client_step(payload.text_or("message"), position, time)
        elif kind == "response_item" or payload is line:
            self._add_item(payload, kind if payload is line else payload.text_or("type"), position, time)
        elif kind not in _SILENT_LINES:
            self._unknown_parts[kind or "line without a type"] += 1

    def build_record(self) -> Record:
        """Return the run."""
        builder = StepBuilder(agent=_AGENT, unknown_parts=self._unknown_parts)
        for step, position in zip(self._turns.steps, self._positions, strict=True):
            builder.append_step(replace(step, source_index=position))
        for branch in self._branches:
            for step in branch.steps:
                builder.unknown_parts.update(step.unknown_parts)
        prompts = {"": self._instructions} if self._instructions else {}
        run = builder.build_trajectory(
            self._id or self._name,
            self._format,
            system_prompts=prompts,
            branches=tuple(self._branches),
            exit_status=self._exit_status,
            extra=self._extra,
        )
        return Record(trajectory=run)

    def _add_head(self, head: JsonNode) -> None:
        if self._id is not None:
            return
        self._id = head.scalar_or("id") or self._name
        self._extra |= {name: head.raw(key) for key, name in _META_FIELDS.items() if key in head}
        git = head.raw("git")
        if isinstance(git, dict) and isinstance(git.get("branch"), str):
            self._extra["git_branch"] = git["branch"]
        instructions = head.raw("base_instructions") or head.raw("instructions")
        if isinstance(instructions, dict):
            instructions = instructions.get("text")
        self._instructions = instructions if isinstance(instructions, str) else ""

    def _add_item(self, item: JsonNode, kind: str, position: int, time: float | None) -> None:
        if kind in _SILENT_ITEMS or kind in _SILENT_LINES:
            return
        data = item.extra_fields("encrypted_content", "timestamp")
        call_id, outcome = item.scalar_or("call_id"), None
        if kind.endswith("_call_output"):
            data["output"], outcome = _parse_output(item.raw("output"))
            outcome = outcome or self._outcomes.get(call_id)
        self._turns.add_item(JsonNode(data, item.path))
        self._extend_positions(position)
        step = self._turns.steps[-1]
        if step.source is Source.USER and step.content.lstrip().startswith(_CLIENT_PREFIXES):
            step = replace(step, source=Source.SYSTEM, agent=_CLIENT)
        if outcome is not None:
            step = _mark_result(step, call_id, *outcome)
        if step.source is Source.AGENT:
            self._exit_status = None
            step = replace(step, model=step.model or self._model)
        self._turns.steps[-1] = replace(step, started_at=step.started_at or time, ended_at=time)

    def _extend_positions(self, position: int) -> None:
        self._positions += [position] * (len(self._turns.steps) - len(self._positions))

    def _add_client_step(
        self, text: str, position: int, time: float | None, *, source: Source = Source.SYSTEM, **extra: Any
    ) -> None:
        if not text:
            return
        step = Step(
            index=len(self._turns.steps),
            source=source,
            agent=_CLIENT,
            content=text,
            started_at=time,
            extra=extra,
        )
        self._turns.steps.append(step)
        self._turns.start_response(None, {})
        self._extend_positions(position)

    def _add_event(self, event: JsonNode, position: int, time: float | None) -> None:
        kind = event.text_or("type")
        if kind == "token_count":
            self._add_usage(event)
        elif kind in ("exec_command_end", "patch_apply_end"):
            outcome = _build_outcome(event.raw("exit_code"), event.raw("success"))
            if outcome is not None:
                self._outcomes[event.scalar_or("call_id")] = outcome
        elif kind == "turn_aborted":
            self._exit_status = event.text_or("reason") or "interrupted"
        elif kind == "error":
            self._exit_status = "error"
            message = event.text_or("message")
            self._add_client_step(message, position, time, source=Source.ENVIRONMENT, is_error=True)
        elif kind == "thread_rolled_back":
            self._roll_back(event.integer_or("num_turns") or 0)

    def _add_usage(self, event: JsonNode) -> None:
        """Add the usage of the last request; a repeated event has the same total."""
        info = event.node_or("info")
        total, usage = info.raw("total_token_usage"), parse_usage(info.raw("last_token_usage"))
        if usage is None or total == self._total_usage:
            return
        self._total_usage = total
        steps = self._turns.steps
        last = next((step for step in reversed(steps) if step.source is Source.AGENT), None)
        if last is not None:
            steps[last.index] = last.with_usage(sum_usages((last.usage, usage)), last.model)

    def _roll_back(self, num_turns: int) -> None:
        """Move the last user turns and their answers to a branch."""
        steps = self._turns.steps
        users = [step.index for step in steps if step.source is Source.USER][-num_turns:] if num_turns else []
        if not users:
            return
        fork = users[0]
        abandoned = tuple(
            replace(step, source_index=position)
            for step, position in zip(steps[fork:], self._positions[fork:], strict=True)
        )
        id = f"rollback-{len(self._branches) + 1}"
        # An earlier branch after the new fork is a branch of the abandoned steps.
        self._branches = [
            replace(one, parent=id) if one.parent is None and one.fork_step > fork else one
            for one in self._branches
        ]
        self._branches.append(Branch(id=id, fork_step=fork, steps=abandoned, reason="thread_rolled_back"))
        del steps[fork:], self._positions[fork:]
        self._turns.start_response(None, {})


def _find_head(line: JsonNode) -> JsonNode | None:
    """Return the facts of the session in a head line; None for any other line."""
    if line.raw("type") == "session_meta":
        return line.node("payload")
    return line if "type" not in line and "record_type" not in line and "id" in line else None


def _build_outcome(exit_code: Any, success: Any) -> _Outcome | None:
    if isinstance(exit_code, int):
        return exit_code != 0, exit_code
    return (not success, None) if isinstance(success, bool) else None


def _parse_output(output: Any) -> tuple[Any, _Outcome | None]:
    """Return the text of an output and its outcome; the output may be JSON with ``metadata.exit_code``."""
    value = output
    if isinstance(output, str) and output.startswith("{"):
        try:
            value = loads(output)
        except FormatError:
            return output, None
    if not isinstance(value, dict):
        return output, None
    metadata = value.get("metadata")
    exit_code = metadata.get("exit_code") if isinstance(metadata, dict) else None
    outcome = _build_outcome(exit_code, value.get("success"))
    text = next((value[key] for key in ("output", "content") if isinstance(value.get(key), str | list)), None)
    if outcome is None or text is None:
        # The tool itself returned JSON, or the output has another form: nothing is removed from it.
        return (
            output if isinstance(output, str) else text if text is not None else dumps(value).decode()
        ), None
    return text, outcome


def _mark_result(step: Step, call_id: str, is_error: bool, exit_code: int | None) -> Step:
    extra = {} if exit_code is None else {"exit_code": exit_code}

    def mark(one: Observation) -> Observation:
        return replace(one, is_error=is_error, extra={**one.extra, **extra})

    return step.with_observations(
        tuple(mark(one) if one.call_id == call_id else one for one in step.observations)
    )


FORMAT = CodexCli()
