"""Base classes of formats whose runs span the lines of a log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol

from agentguard.errors import FormatError, InputError
from agentguard.trajectory.formats.base import SourceItem, UnreadableRecord, raise_unreadable
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Record

_SCORED_LINES = 8


class LineFormat(ABC):
    """Base of a format of lines; a list of lines is read like a file of them."""

    name: str
    summary: str

    def score_match(self, value: Any) -> float:
        """Return the score of a line; a list has slightly less than the best score of its first lines."""
        if isinstance(value, list):
            lines = (one for one in value[:_SCORED_LINES] if isinstance(one, dict))
            return max(map(self.score_match, lines), default=0.0) * 0.99
        return self.score_line(value) if isinstance(value, dict) else 0.0

    @abstractmethod
    def score_line(self, line: dict[str, Any]) -> float:
        """Return the likelihood in [0, 1] that a line is of this format."""

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the runs of a line, or of a list of lines. Raises the error of the first unreadable one."""
        values = value if isinstance(value, list) else [value]
        items = (SourceItem(i, one) for i, one in enumerate(values))
        yield from raise_unreadable(self.parse_sequence(items, name=name))

    @abstractmethod
    def parse_sequence(
        self, items: Iterator[SourceItem], *, name: str
    ) -> Iterator[Record | UnreadableRecord]:
        """Yield the runs of the lines; see `SequenceFormat`."""


class SessionRun(Protocol):
    """Assembler of the lines of one session."""

    def is_next_session(self, line: JsonNode) -> bool:
        """Return True if a line begins another session."""
        ...

    def add_line(self, line: JsonNode, position: int) -> None:
        """Add a line. Raises FormatError with the field of a malformed line."""
        ...

    def build_record(self) -> Record:
        """Return the run."""
        ...


class SessionFormat(LineFormat):
    """Base of a format of sessions; a session ends if the next session begins."""

    @abstractmethod
    def start_run(self, name: str) -> SessionRun:
        """Return the assembler of a session; ``name`` is its id if it has no id."""

    def parse_sequence(
        self, items: Iterator[SourceItem], *, name: str
    ) -> Iterator[Record | UnreadableRecord]:
        """Yield the runs of the sessions. Raises FormatError without a line."""
        run, is_run_empty, is_empty = self.start_run(name), True, True
        for item in items:
            is_empty = False
            try:
                line = JsonNode.from_value(item.read())
                if not is_run_empty and run.is_next_session(line):
                    yield run.build_record()
                    run = self.start_run(f"{name}#{item.position}")
                is_run_empty = False
                run.add_line(line, item.position)
            except InputError as error:
                yield UnreadableRecord(error=error.with_location(record=item.position))
        if not is_run_empty:
            yield run.build_record()
        elif is_empty:
            raise FormatError("expected at least one line")
