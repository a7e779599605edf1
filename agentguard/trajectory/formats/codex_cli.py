"""Codex CLI: rollout files (``~/.codex/sessions/YYYY/MM/DD/rollout-*.jsonl``).

``response_item`` lines have items of the Responses API. ``event_msg`` lines repeat them for the display; only
token counts, exit codes, errors, interruptions and rollbacks are read from them. The lines of files from
before version 0.40 are the items themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentguard.errors import FormatError, InputError
from agentguard.trajectory._json_node import JsonNode
from agentguard.trajectory.formats._codex_run import CodexRun
from agentguard.trajectory.formats._stream_reader import SourceItem
from agentguard.trajectory.formats.base import UnreadableRecord, score_lines
from agentguard.trajectory.model import Record

_LINE_TYPES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})


class CodexCli:
    """Importer of Codex CLI's rollout files."""

    name = "codex_cli"
    summary = "Codex CLI rollouts (JSON Lines), also from before payloads"

    def score_match(self, value: Any) -> float:
        """Score a line with a payload, or a head or state line of an older file."""
        if isinstance(value, list):
            return score_lines(self.score_match, value)
        if not isinstance(value, dict):
            return 0.0
        if isinstance(value.get("payload"), dict):
            kind = value.get("type")
            return 0.97 if isinstance(kind, str) and kind in _LINE_TYPES else 0.0
        is_old_head = value.keys() >= {"id", "timestamp", "instructions"} and "type" not in value
        return 0.9 if is_old_head or value.get("record_type") == "state" else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the runs of a line, or of a list of lines."""
        values = value if isinstance(value, list) else [value]
        for record in self.parse_sequence((SourceItem(i, one) for i, one in enumerate(values)), name=name):
            if isinstance(record, UnreadableRecord):
                raise record.error
            yield record

    def parse_sequence(
        self, items: Iterator[SourceItem], *, name: str
    ) -> Iterator[Record | UnreadableRecord]:
        """Yield the runs of the sessions; a session ends if the next session begins."""
        run = CodexRun(self.name, name)
        is_empty = True
        for item in items:
            try:
                if item.error is not None:
                    raise item.error
                line = JsonNode.from_value(item.value)
                if run.is_next_session(line):
                    yield run.build_record()
                    run = CodexRun(self.name, name)
                run.add_line(line, item.position)
                is_empty = False
            except InputError as error:
                is_empty = False
                yield UnreadableRecord(error=error.with_location(record=item.position))
        if run.has_lines:
            yield run.build_record()
        elif is_empty:
            raise FormatError("a rollout without lines")


FORMAT = CodexCli()
