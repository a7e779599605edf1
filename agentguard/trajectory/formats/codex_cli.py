"""Codex CLI: rollout files (``~/.codex/sessions/YYYY/MM/DD/rollout-*.jsonl``).

``response_item`` lines have items of the Responses API. ``event_msg`` lines repeat them for the display; only
token counts, exit codes, errors, interruptions and rollbacks are read from them. The lines of files from
before version 0.40 are the items themselves.
"""

from __future__ import annotations

from typing import Any

from agentguard.trajectory.formats._codex_run import CodexRun
from agentguard.trajectory.formats._line_format import SessionFormat

_LINE_TYPES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})


class CodexCli(SessionFormat):
    """Importer of Codex CLI's rollout files."""

    name = "codex_cli"
    summary = "Codex CLI rollouts (JSON Lines), also from before payloads"

    def score_line(self, line: dict[str, Any]) -> float:
        """Score a line with a payload, or a head or state line of an older file."""
        if isinstance(line.get("payload"), dict):
            kind = line.get("type")
            return 0.97 if isinstance(kind, str) and kind in _LINE_TYPES else 0.0
        is_old_head = line.keys() >= {"id", "timestamp", "instructions"} and "type" not in line
        return 0.9 if is_old_head or line.get("record_type") == "state" else 0.0

    def start_run(self, name: str) -> CodexRun:
        """Return the assembler of a rollout."""
        return CodexRun(self.name, name)


FORMAT = CodexCli()
