"""Event log of agentguard as a format; `agentguard.trajectory.event_log.recorder` describes the events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentguard.errors import FormatError
from agentguard.trajectory.event_log.recorder import EVENT_NAMES, RunAssembler, build_events
from agentguard.trajectory.formats._line_format import LineFormat
from agentguard.trajectory.formats.base import SourceItem, UnreadableRecord
from agentguard.trajectory.model import Annotation, Record
from agentguard.trajectory.safe_json import MAX_LOG_DEPTH


class EventLogFormat(LineFormat):
    """Importer and exporter of the event log."""

    name = "event_log"
    summary = "agentguard's own append-only event log (JSON Lines); lossless, with branches"
    max_depth = MAX_LOG_DEPTH

    def score_line(self, line: dict[str, Any]) -> float:
        """Return a positive score for an event."""
        if line.get("event") not in EVENT_NAMES:
            return 0.0
        return 0.99 if line["event"] == "end" or len(line) > 1 else 0.0

    def parse_sequence(
        self,
        items: Iterator[SourceItem],
        *,
        name: str,  # noqa: ARG002
    ) -> Iterator[Record | UnreadableRecord]:
        """Yield the runs of a log.

        A line that is not JSON is the result of a crash: it is reported and skipped. An event that does not
        fit the run so far makes that run unreadable; its other events are skipped.
        """
        assembler = RunAssembler()
        is_run_lost = False
        for item in items:
            if item.error is not None:
                yield UnreadableRecord(error=item.error.with_location(record=item.position))
                continue
            begins = isinstance(item.value, dict) and item.value.get("event") == "header"
            if is_run_lost and not begins:
                continue
            is_run_lost = False
            try:
                finished_record = assembler.apply(item.value)
            except FormatError as error:
                assembler.state, is_run_lost = None, True
                yield UnreadableRecord(error=error.with_location(record=item.position))
            else:
                if finished_record is not None:
                    yield finished_record
        if (last_record := assembler.finish()) is not None:
            yield last_record

    def dump(self, record: Record, *, annotation: bool = False) -> list[dict[str, Any]]:
        """Return the run as a list of events."""
        exported_record = (
            record if annotation else Record(trajectory=record.trajectory, annotation=Annotation())
        )
        return list(build_events(exported_record))


FORMAT = EventLogFormat()
