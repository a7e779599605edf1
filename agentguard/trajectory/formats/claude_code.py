"""Claude Code: session files (``~/.claude/projects``) and the output of ``--output-format stream-json``.

A session is a run. Each of its sub-agents is a separate run, in the file of the session or in another file.
Several sessions may follow each other in a file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from agentguard.errors import FormatError, InputError
from agentguard.trajectory.formats._claude_code_events import MESSAGE_TYPES, SILENT_TYPES, ClaudeCodeRun
from agentguard.trajectory.formats._line_format import LineFormat
from agentguard.trajectory.formats.base import SourceItem, UnreadableRecord
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Record


class ClaudeCode(LineFormat):
    """Importer of Claude Code's session files and event streams."""

    name = "claude_code"
    summary = "Claude Code sessions (JSON Lines) and stream-json output, sub-agents as their own runs"

    def score_line(self, line: dict[str, Any]) -> float:
        """Return a positive score for an event of a session or a stream, or an object with ``loglines``."""
        loglines = line.get("loglines")
        return self.score_match(loglines) if isinstance(loglines, list) else _score_event(line)

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the runs of an event, a list of events, or an object with ``loglines``."""
        if isinstance(value, dict):
            value = JsonNode(value).items("loglines") if "loglines" in value else [value]
        if not isinstance(value, list):
            raise FormatError("expected an event or a list of events")
        yield from super().parse(value, name=name)

    def parse_sequence(
        self, items: Iterator[SourceItem], *, name: str
    ) -> Iterator[Record | UnreadableRecord]:
        """Yield the runs of the sessions; a session ends when the next one begins."""
        yield from ClaudeCodeReader(self.name, name).read(items)


def _score_event(value: dict[str, Any]) -> float:
    kind = value.get("type")
    if not isinstance(kind, str):
        return 0.0
    has_session = "sessionId" in value or "session_id" in value
    if kind in ("user", "assistant") and isinstance(value.get("message"), dict):
        return 0.97 if has_session or "parentUuid" in value else 0.7 if "role" in value["message"] else 0.0
    if kind == "summary":
        return 0.9 if "leafUuid" in value else 0.0
    if kind == "file-history-snapshot":
        return 0.9
    is_known = kind in MESSAGE_TYPES or kind in SILENT_TYPES or (kind == "result" and "is_error" in value)
    return 0.9 if is_known and has_session else 0.0


class ClaudeCodeReader:
    """Reader of a sequence of events; the runs of one session are in memory at a time.

    Args:
        format: name of the importer, for `Trajectory.format`.
        name: id of a run without a session id.
    """

    def __init__(self, format: str, name: str) -> None:
        self._format, self._name = format, name
        self._session: str | None = None
        self._runs: dict[str, ClaudeCodeRun] = {}
        self._summaries: dict[str, str] = {}
        self._silent_events: Counter[str] = Counter()
        self._used_ids: Counter[str] = Counter()

    def read(self, items: Iterator[SourceItem]) -> Iterator[Record | UnreadableRecord]:
        """Yield the runs, and an `UnreadableRecord` for each event that cannot be read."""
        is_read = False
        for item in items:
            try:
                event = JsonNode.from_value(item.read())
                if self._is_next_session(event):
                    is_read = True
                    yield from self._finish_session()
                self._add_event(event, item.position)
            except InputError as error:
                is_read = True
                yield UnreadableRecord(error=error.with_location(record=item.position))
        if self._runs:
            yield from self._finish_session()
        elif not is_read:
            kinds = ", ".join(sorted(self._silent_events))
            yield UnreadableRecord(
                error=FormatError(f"a session without messages, only {kinds or 'unknown'} events")
            )

    def _is_next_session(self, event: JsonNode) -> bool:
        session, main = _find_session(event), self._runs.get("")
        if not self._runs or not session or self._session is None or session == self._session:
            return False
        # A resumed session continues the conversation of the earlier session, which the file repeats.
        return main is None or not any(event.scalar_or(key) in main for key in ("uuid", "parentUuid"))

    def _finish_session(self) -> Iterator[Record]:
        for run in self._runs.values():
            self._used_ids[run.id] += 1
            if (number := self._used_ids[run.id]) > 1:
                run.id = f"{run.id}#{number}"
            yield run.build_record(self._summaries)
        self._runs, self._session = {}, None

    def _add_event(self, event: JsonNode, position: int) -> None:
        kind = event.text_or("type")
        if kind == "summary":
            self._summaries[event.scalar_or("leafUuid")] = event.text_or("summary")
        if kind == "summary" or (kind in SILENT_TYPES and not self._runs):
            self._silent_events[kind] += 1
            return
        self._select_run(event).add_event(event, position)

    def _select_run(self, event: JsonNode) -> ClaudeCodeRun:
        session = _find_session(event)
        lane = self._find_lane(event)
        self._session = session or self._session
        parent_id = self._session or self._name
        if (run := self._runs.get(lane)) is None:
            run = self._runs[lane] = ClaudeCodeRun(
                f"{parent_id}/{lane}" if lane else parent_id,
                self._format,
                parent_id=parent_id if lane else None,
            )
        elif not lane and session:
            run.id = session
        return run

    def _find_lane(self, event: JsonNode) -> str:
        """Return the key of the sub-agent of an event; empty for the main agent."""
        id = event.scalar_or("parent_tool_use_id")
        if event.raw("isSidechain") is not True or id:
            return id
        if id := event.scalar_or("agentId"):
            return id
        parent = event.scalar_or("parentUuid")
        lanes = (lane for lane, run in self._runs.items() if lane and parent and parent in run)
        return next(lanes, "") or event.scalar_or("uuid") or "sidechain"


def _find_session(event: JsonNode) -> str:
    return event.scalar_or("sessionId") or event.scalar_or("session_id")


FORMAT = ClaudeCode()
