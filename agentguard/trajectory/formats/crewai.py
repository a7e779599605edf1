"""CrewAI: the log of the tasks (``Crew(output_log_file=...)``), as JSON or text.

A log has an entry for the start and the end of each task, without tool calls. Every kickoff appends to the
same file; a kickoff begins when a task of the current one starts again. Spans of CrewAI in OpenInference or
OTLP contain the tool calls and are read by other importers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from agentguard.trajectory.formats._step_builder import StepBuilder
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Record, Source

_FIELDS: Final = frozenset({"timestamp", "task", "agent", "status"})
_READ_FIELDS: Final = (*_FIELDS, "task_name", "output")
_ENTRY: Final = re.compile(
    r'^(?P<timestamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d): task_name="(?P<task_name>.*?)", task="(?P<task>.*?)", '
    r'agent="(?P<agent>.*?)", status="(?P<status>\w+)"(?:, output="(?P<output>.*)")?$',
    re.DOTALL,
)
_ENTRY_START: Final = re.compile(r"^(?=\d{4}-\d\d-\d\d \d\d:\d\d:\d\d: task_name=)", re.MULTILINE)


class CrewAI:
    """Importer of CrewAI's logs of tasks."""

    name = "crewai"
    summary = "CrewAI logs of tasks (output_log_file, JSON or text)"

    def score_match(self, value: Any) -> float:
        """Return a positive score for a list of entries, an entry, or the text of a log."""
        if isinstance(value, str):
            return 0.97 if _ENTRY_START.match(value.lstrip()[:200]) else 0.0
        if isinstance(value, list):
            return 0.97 if value and all(map(_is_entry, value[:8])) else 0.0
        return 0.96 if _is_entry(value) else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield one run per kickoff."""
        entries = _parse_text(value) if isinstance(value, str) else _wrap_entries(value)
        for number, kickoff in enumerate(_split_kickoffs(entries)):
            builder = StepBuilder()
            for position, entry in kickoff:
                _add_entry(builder, entry, position)
            yield Record(
                trajectory=builder.build_trajectory(f"{name}#{number}" if number else name, self.name)
            )


def _is_entry(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() >= _FIELDS and isinstance(value["status"], str)


def _wrap_entries(value: Any) -> Iterator[JsonNode]:
    values = value if isinstance(value, list) else [value]
    return (JsonNode.from_value(one, f"[{i}]") for i, one in enumerate(values))


def _parse_text(text: str) -> Iterator[JsonNode]:
    for number, part in enumerate(_ENTRY_START.split(text.lstrip())):
        if match := _ENTRY.match(part.rstrip("\n")):
            yield JsonNode(match.groupdict(), f"[{number}]")
        elif part.strip():
            yield JsonNode({"status": "line that is not an entry"}, f"[{number}]")


def _split_kickoffs(entries: Iterator[JsonNode]) -> Iterator[list[tuple[int, JsonNode]]]:
    kickoff: list[tuple[int, JsonNode]] = []
    started: set[tuple[str, str]] = set()
    for position, entry in enumerate(entries):
        if entry.raw("status") == "started":
            task = entry.scalar_or("task_name"), entry.text_or("task")
            if task in started:
                yield kickoff
                kickoff, started = [], set()
            started.add(task)
        kickoff.append((position, entry))
    if kickoff:
        yield kickoff


def _add_entry(builder: StepBuilder, entry: JsonNode, position: int) -> None:
    status, time = entry.text_or("status"), entry.timestamp_or("timestamp")
    name = entry.scalar_or("task_name")
    extra = entry.nonempty_extra_fields(*_READ_FIELDS)
    extra |= {"task_name": name} if name and name != "None" else {}
    if status == "started":
        builder.add_turn(
            entry.text_or("task"),
            source=Source.USER,
            agent="CrewAI",
            source_index=position,
            started_at=time,
            extra=extra,
        )
    elif status == "completed":
        assignment = next((one for one in reversed(builder.steps) if one.source is Source.USER), None)
        builder.add_turn(
            entry.text_or("output"),
            agent=entry.text_or("agent").strip(),
            source_index=position,
            started_at=assignment.started_at if assignment is not None else None,
            ended_at=time,
            extra=extra,
        )
    else:
        builder.add_unknown(f"entry {status or 'without a status'}")


FORMAT = CrewAI()
