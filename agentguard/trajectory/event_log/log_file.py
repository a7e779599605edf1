"""File of the event log: appends events, and reads complete and interrupted runs.

Each event is one write, so a crash loses at most one event. An incomplete last line stays in the file. The
next `EventLog` of the file ends the line with a line break, and the reader reports it and skips it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from agentguard.errors import EventLogError, InputError
from agentguard.trajectory.event_log.recorder import EventLogState, RunAssembler, build_events
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import read
from agentguard.trajectory.formats.sdk import iter_values
from agentguard.trajectory.model import Record
from agentguard.trajectory.safe_json import dumps


class EventLog:
    """Append-only file of events, open until `close`.

    Args:
        path: the file; created if it does not exist.
        fsync: wait for the disk after every event; slow, but events survive a power failure, too.

    Raises:
        EventLogError: the file cannot be opened or written.
    """

    def __init__(self, path: str | os.PathLike[str], *, fsync: bool = False) -> None:
        self.path = Path(path)
        self._fsync = fsync
        self._has_torn_line = False
        try:
            # Unbuffered: one event is one write at the end of the file.
            self._file: BinaryIO = open(self.path, "ab", buffering=0)  # noqa: SIM115
            self._close_torn_line()
        except OSError as error:
            raise EventLogError(f"cannot be opened: {error.strerror}", file=str(self.path)) from None

    def append(self, event: dict[str, Any]) -> None:
        """Write one event.

        Raises:
            EventLogError: the file cannot be written.
            FormatError: the event contains data that is not JSON.
        """
        line = (b"\n" if self._has_torn_line else b"") + dumps(event) + b"\n"
        try:
            # Until the write is complete, the line is torn; the next write then begins with a line break.
            self._has_torn_line = True
            while line:
                line = line[self._file.write(line) :]
            self._has_torn_line = False
            if self._fsync:
                os.fsync(self._file.fileno())
        except (OSError, ValueError) as error:
            raise EventLogError(f"cannot be written: {error}", file=str(self.path)) from None

    def extend(self, events: Iterable[dict[str, Any]]) -> None:
        """Write several events."""
        for event in events:
            self.append(event)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _close_torn_line(self) -> None:
        with open(self.path, "rb") as file:
            if not file.seek(0, os.SEEK_END):
                return
            file.seek(-1, os.SEEK_END)
            torn = file.read(1) != b"\n"
        if torn:
            self._file.write(b"\n")


def write_log(record: Record, path: str | os.PathLike[str], *, fsync: bool = False) -> None:
    """Append a complete run to a log. Raises EventLogError."""
    with EventLog(path, fsync=fsync) as log:
        log.extend(build_events(record))


def read_log(path: str | os.PathLike[str]) -> Iterator[Record | UnreadableRecord]:
    """Yield the runs of a log, and an UnreadableRecord for every line that cannot be read."""
    return read(path, format="event_log")


def load_last_state(path: Path) -> EventLogState:
    """Return the state of the last run. Raises EventLogError if the run has ended or the log has no run."""
    assembler = RunAssembler()
    try:
        for item in iter_values(path):
            if item.error is None:
                assembler.apply(item.value)
    except InputError as error:
        raise EventLogError(error.reason, file=str(path), field=error.field) from None
    if assembler.state is None:
        raise EventLogError("no unfinished run", file=str(path), hint="its last run has ended")
    return assembler.state
