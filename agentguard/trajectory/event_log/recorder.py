"""Recorder of runs as events of the event log, and their assembly into runs.

A log is JSON Lines. Each line is one event with a field ``event``:

``header``      begins a run: ``version`` and all of the trajectory except its steps;
``step``        the next step of the current branch, or of the branch named in ``branch``;
``fork``        moves the steps from ``at`` to the new branch ``branch``, with a ``reason``;
``branch``      declares a branch; ``step`` events that name it follow;
``annotation``  labels of the run from its data set; the last one counts;
``end``         ends the run.

The next header or the end of the log also ends a run, so that a log is readable after a crash.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from agentguard.errors import EventLogError, FormatError
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Annotation, Branch, Record, Step, Trajectory
from agentguard.trajectory.serialization import (
    decode_annotation,
    decode_meta,
    decode_step,
    encode_annotation,
    encode_meta,
    encode_step,
)

EVENT_LOG_VERSION = 1
EVENT_NAMES = ("header", "step", "fork", "branch", "annotation", "end")


class EventLogState:
    """State of one run, built from its events; the reader and the live recorder share this class."""

    def __init__(self, meta: Trajectory, annotation: Annotation | None = None) -> None:
        self.meta = meta
        self.annotation = annotation or Annotation()
        self.is_ended = False
        self._current_steps: list[Step] = []
        self._branches: dict[str, Branch] = {}
        self._branch_steps: dict[str, list[Step]] = {}

    def __len__(self) -> int:
        return len(self._current_steps)

    @property
    def branch_count(self) -> int:
        """Number of branches."""
        return len(self._branches)

    @property
    def branch_ids(self) -> frozenset[str]:
        """Ids of the branches."""
        return frozenset(self._branches)

    def append_step(self, step: Step, branch: str | None = None) -> None:
        """Add the next step of the current or a declared branch. Raises FormatError on a gap."""
        if branch is None:
            line, begins = self._current_steps, 0
        elif branch in self._branch_steps:
            line, begins = self._branch_steps[branch], self._branches[branch].fork_step
        else:
            raise FormatError("a step of an undeclared branch", field="branch")
        if step.index != begins + len(line):
            raise FormatError(f"expected step {begins + len(line)}, found {step.index}", field="step.index")
        line.append(step)

    def declare_branch(self, branch: Branch) -> None:
        """Add a branch; `append_step` adds its steps. Raises FormatError if the id exists."""
        if branch.id in self._branches:
            raise FormatError("the branch already exists", field="branch")
        self._branches[branch.id] = branch
        self._branch_steps[branch.id] = list(branch.steps)

    def fork_branch(self, branch: str, at: int, *, reason: str, extra: Mapping[str, Any]) -> Branch:
        """Move the steps of the current branch from step ``at`` to a new branch, and return that branch."""
        if not 0 <= at <= len(self._current_steps):
            raise FormatError(f"the current branch has {len(self._current_steps)} steps", field="at")
        abandoned_branch = Branch(
            id=branch, fork_step=at, steps=tuple(self._current_steps[at:]), reason=reason, extra=extra
        )
        self.declare_branch(abandoned_branch)
        del self._current_steps[at:]
        for existing in list(self._branches.values()):
            # A branch that forked from the current branch after this point is now a child of the new branch.
            if existing.parent is None and existing.id != branch and existing.fork_step > at:
                self._branches[existing.id] = replace(existing, parent=branch)
        return abandoned_branch

    def to_record(self) -> Record:
        """Return the run in its current state."""
        branches = tuple(replace(b, steps=tuple(self._branch_steps[b.id])) for b in self._branches.values())
        run = replace(self.meta, steps=tuple(self._current_steps), branches=branches)
        return Record(trajectory=run, annotation=self.annotation)


class EventSink(Protocol):
    """Destination of events: a file (`log_file.EventLog`) or the store (`agentguard.store.event_sink`)."""

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
        from agentguard.trajectory.event_log.log_file import EventLog, load_last_state

        state = load_last_state(Path(path))
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


class RunAssembler:
    """Assembler of events into runs; one run is in memory at a time."""

    def __init__(self) -> None:
        self.state: EventLogState | None = None

    def apply(self, event: Any) -> Record | None:
        """Apply one event; return the run that it ends, or None.

        Raises:
            FormatError: the event is not valid, or not valid at this place of the log.
        """
        node = JsonNode.from_value(event)
        name = node.text("event")
        if name not in EVENT_NAMES:
            raise node.build_error("event", f"expected one of {', '.join(EVENT_NAMES)}")
        if name == "header":
            return self._start_run(node)
        if self.state is None:
            raise FormatError("an event precedes the header", field="event")
        return self._apply_event(name, node, self.state)

    def finish(self) -> Record | None:
        """Return the open run, or None."""
        state, self.state = self.state, None
        return state.to_record() if state is not None else None

    def _start_run(self, node: JsonNode) -> Record | None:
        before = self.finish()
        version = node.integer("version")
        if version != EVENT_LOG_VERSION:
            raise node.build_error("version", f"version {version}, this agentguard reads {EVENT_LOG_VERSION}")
        self.state = EventLogState(decode_meta(node))
        return before

    def _apply_event(self, name: str, node: JsonNode, state: EventLogState) -> Record | None:
        branch = node.text("branch") if "branch" in node else None
        if name == "step":
            state.append_step(decode_step(node.node("step")), branch)
        elif name == "annotation":
            state.annotation = decode_annotation(node.node("annotation"))
        elif name == "end":
            return self.finish()
        elif name == "fork":
            extra = node.node_or("extra").data
            state.fork_branch(
                node.text("branch"), node.integer("at"), reason=node.text_or("reason"), extra=extra
            )
        else:
            state.declare_branch(_decode_branch(node))
        return None


def build_header_event(meta: Trajectory) -> dict[str, Any]:
    """Build the event that begins a run."""
    return {"event": "header", "version": EVENT_LOG_VERSION, **encode_meta(meta)}


def build_step_event(step: Step, branch: str | None = None) -> dict[str, Any]:
    """Build the event of one step."""
    return {"event": "step", **({"branch": branch} if branch is not None else {}), "step": encode_step(step)}


def build_fork_event(branch: Branch) -> dict[str, Any]:
    """Build the event of a fork at ``branch.fork_step``."""
    data: dict[str, Any] = {"event": "fork", "branch": branch.id, "at": branch.fork_step}
    data |= {"reason": branch.reason} if branch.reason else {}
    return data | ({"extra": dict(branch.extra)} if branch.extra else {})


def build_branch_event(branch: Branch) -> dict[str, Any]:
    """Build the event that declares a branch, without its steps."""
    data: dict[str, Any] = {"event": "branch", "branch": branch.id, "fork_step": branch.fork_step}
    data |= {"parent": branch.parent} if branch.parent is not None else {}
    data |= {"reason": branch.reason} if branch.reason else {}
    return data | ({"extra": dict(branch.extra)} if branch.extra else {})


def build_annotation_event(annotation: Annotation) -> dict[str, Any]:
    """Build the event of an annotation."""
    return {"event": "annotation", "annotation": encode_annotation(annotation)}


def build_events(record: Record) -> Iterator[dict[str, Any]]:
    """Yield all events of a finished run, in an order that `RunAssembler` accepts."""
    run = record.trajectory
    yield build_header_event(run)
    for step in run.steps:
        yield build_step_event(step)
    for branch in run.branches:
        yield build_branch_event(branch)
        for step in branch.steps:
            yield build_step_event(step, branch.id)
    if record.annotation != Annotation():
        yield build_annotation_event(record.annotation)
    yield {"event": "end"}


def _decode_branch(node: JsonNode) -> Branch:
    return Branch(
        id=node.text("branch"),
        fork_step=node.integer("fork_step"),
        steps=(),
        parent=node.text("parent") if "parent" in node else None,
        reason=node.text_or("reason"),
        extra=node.node_or("extra").data,
    )
