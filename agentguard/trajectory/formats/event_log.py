"""Event log of agentguard as a format; `agentguard.trajectory.event_log.events` describes the events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentguard.errors import FormatError
from agentguard.trajectory._safe_json import MAX_LOG_DEPTH
from agentguard.trajectory.event_log.events import EVENT_NAMES, RunAssembler, build_events
from agentguard.trajectory.formats._stream_reader import SourceItem
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.model import Annotation, Record


class EventLogFormat:
    """Importer and exporter of the event log."""

    name = "event_log"
    summary = "agentguard's own append-only event log (JSON Lines); lossless, with branches"
    max_depth = MAX_LOG_DEPTH

    def score_match(self, value: Any) -> float:
        """Score an event, or a list that begins with an event."""
        if isinstance(value, list) and value:
            return self.score_match(value[0])
        if not isinstance(value, dict) or value.get("event") not in EVENT_NAMES:
            return 0.0
        return 0.99 if value["event"] == "end" or len(value) > 1 else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the runs of a list of events, or of a single event (a header without steps)."""
        items = (
            SourceItem(i, event) for i, event in enumerate(value if isinstance(value, list) else [value])
        )
        for record in self.parse_sequence(items, name=name):
            if isinstance(record, UnreadableRecord):
                raise record.error
            yield record

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
