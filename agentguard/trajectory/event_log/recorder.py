"""Recorder of the event log, for steps of a live run and for complete runs.

The recorder writes each event with one unbuffered call, so a crash loses at most one event. An incomplete
last line stays in the file. The next `EventLog` of the file ends it with a line break, and the reader reports
it and skips it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self

from agentguard.errors import EventLogError, InputError
from agentguard.trajectory.event_log.events import (
    EventLogState,
    RunAssembler,
    build_annotation_event,
    build_events,
    build_fork_event,
    build_header_event,
    build_step_event,
)
from agentguard.trajectory.formats._stream_reader import detect_content
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import read
from agentguard.trajectory.model import Annotation, Branch, Record, Step, Trajectory
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


class EventSink(Protocol):
    """Destination of events: a file (`EventLog`) or the store (`agentguard.store.event_sink`)."""

    def append(self, event: dict[str, Any]) -> None:
        """Write one event; callers write events in the order of their occurrence."""
        ...

    def close(self) -> None:
        """Close the sink; there are no more events."""
        ...


class RunRecorder:
    """Recorder of the steps of a live run, in memory and optionally in a log.

    Args:
        meta: the run without its steps: id, format, task, tools, system prompts.
        log: sink that also receives every event.
    """

    def __init__(self, meta: Trajectory, *, log: EventSink | None = None) -> None:
        self._state = EventLogState(replace(meta, steps=(), branches=()))
        self._log = log
        self._append_event(build_header_event(self._state.meta))
        for step in meta.steps:
            self.add(step)

    @classmethod
    def resume(cls, path: str | os.PathLike[str], *, fsync: bool = False) -> Self:
        """Resume the last run of a log. Raises EventLogError if the run has ended or the log has no run."""
        state = _load_last_state(Path(path))
        recorder = cls.__new__(cls)
        recorder._state, recorder._log = state, EventLog(path, fsync=fsync)
        return recorder

    @classmethod
    def resume_record(cls, record: Record, *, log: EventSink | None = None) -> Self:
        """Resume a run from another source, such as the store; ``log`` receives the further events."""
        meta = replace(record.trajectory, steps=(), branches=())
        recorder = cls(meta, log=log)
        recorder._state = EventLogState(meta, record.annotation)
        if record.annotation != Annotation():
            recorder._append_event(build_annotation_event(record.annotation))
        for step in record.trajectory.steps:
            recorder._state.append_step(step)
        for branch in record.trajectory.branches:
            recorder._state.declare_branch(branch)
        return recorder

    @property
    def record(self) -> Record:
        """Run and its annotation in their current state."""
        return self._state.to_record()

    @property
    def trajectory(self) -> Trajectory:
        """Run in its current state."""
        return self._state.to_record().trajectory

    def __len__(self) -> int:
        """Return the number of steps on the current branch."""
        return len(self._state)

    @property
    def branch_count(self) -> int:
        """Number of branches."""
        return self._state.branch_count

    def add(self, step: Step) -> Step:
        """Append a step to the current branch; return it with its new index."""
        self._require_open()
        numbered = step.with_index(len(self._state))
        if self._log is not None:
            self._append_event(build_step_event(numbered))
        self._state.append_step(numbered)
        return numbered

    def fork(self, at: int, *, reason: str = "", branch: str | None = None) -> Branch:
        """Fork the current branch before step ``at``; return the branch with the abandoned steps."""
        self._require_open()
        name = branch if branch is not None else self._generate_branch_id()
        abandoned_branch = self._state.fork_branch(name, at, reason=reason, extra={})
        self._append_event(build_fork_event(abandoned_branch))
        return abandoned_branch

    def annotate(self, annotation: Annotation) -> None:
        """Set the annotation of the run."""
        self._require_open()
        self._state.annotation = annotation
        self._append_event(build_annotation_event(annotation))

    def end(self) -> Record:
        """End the run and return it."""
        self._require_open()
        self._append_event({"event": "end"})
        self._state.is_ended = True
        return self.record

    def close(self) -> None:
        """Close the log, if there is one; the run can be resumed later."""
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _generate_branch_id(self) -> str:
        number = len(self._state.branch_ids) + 1
        while f"branch-{number}" in self._state.branch_ids:
            number += 1
        return f"branch-{number}"

    def _require_open(self) -> None:
        if self._state.is_ended:
            raise EventLogError("the run has ended", hint="create a new RunRecorder")

    def _append_event(self, event: dict[str, Any]) -> None:
        if self._log is not None:
            self._log.append(event)


def write_log(record: Record, path: str | os.PathLike[str], *, fsync: bool = False) -> None:
    """Append a complete run to a log. Raises EventLogError."""
    with EventLog(path, fsync=fsync) as log:
        log.extend(build_events(record))


def read_log(path: str | os.PathLike[str]) -> Iterator[Record | UnreadableRecord]:
    """Yield the runs of a log, and an UnreadableRecord for every line that cannot be read."""
    return read(path, format="event_log")


def _load_last_state(path: Path) -> EventLogState:
    assembler = RunAssembler()
    try:
        with path.open("rb") as stream:
            for item in detect_content(stream).items:
                if item.error is None:
                    assembler.apply(item.value)
    except OSError as error:
        raise EventLogError(f"cannot be opened: {error.strerror}", file=str(path)) from None
    except InputError as error:
        raise EventLogError(error.reason, file=str(path), field=error.field) from None
    if assembler.state is None:
        raise EventLogError("no unfinished run", file=str(path), hint="its last run has ended")
    return assembler.state
