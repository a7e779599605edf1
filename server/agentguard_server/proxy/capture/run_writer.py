"""Writer of captured runs: stores them as they happen and diagnoses them when they have ended."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import orjson

from agentguard.detect.detection import detect
from agentguard.detect.finding_rows import build_finding_rows
from agentguard.errors import FormatError
from agentguard.guard import Guard
from agentguard.recover.recovery_rows import decode_recovery, to_recovery_row
from agentguard.store.db.rows import AcceptanceRow, ClearRunRow, RunRow, StepRow
from agentguard.store.event_sink import StoreEventSink
from agentguard.store.store import Store
from agentguard.trajectory.event_log.recorder import RunAssembler
from agentguard.trajectory.model import Trajectory
from agentguard.trajectory.redaction import Redactor
from agentguard_server.proxy.capture.bundle_writer import RunBundleWriter
from agentguard_server.proxy.capture.diagnosis_worker import DiagnosisWorker, EndedRun
from agentguard_server.proxy.capture.protocol import AcceptanceEvent, RecoveryEvent, RunEvent
from agentguard_server.proxy.capture.run_rows import RunRowBuilder, redact_row

logger = logging.getLogger("agentguard.collector")

_RunKey = tuple[str, str]
"""Tenant and ID of a run."""

_MAX_OPEN_RUNS: Final = 4096
_MAX_BUFFERED_BYTES: Final = 8 * 1024 * 1024
"""Upper bound on the buffered events of open runs. Above it, the writer releases the oldest buffers."""

_MAX_LOGGED_FAILURES: Final = 100


class RunWriter:
    """Writer of runs.

    Args:
        store: store for the runs.
        guard: guard that diagnoses runs with tool calls and runs its detectors on others; None for neither.
        redact: True to redact secrets before a write.
        bundles: writer of bundles; None for no bundles.

    Attributes:
        ended_runs: number of runs that have ended.
        failed_runs: number of runs or events that could not be stored.
    """

    def __init__(
        self, store: Store, guard: Guard | None, *, redact: bool, bundles: RunBundleWriter | None = None
    ) -> None:
        self.store, self._guard, self._bundles = store, guard, bundles
        self._redactor = Redactor() if redact else None
        self._event_sinks: OrderedDict[_RunKey, RunEventSink] = OrderedDict()
        self._changed_runs: dict[RunRowBuilder, None] = {}
        self._buffered_sinks: dict[RunEventSink, None] = {}
        self._buffered_bytes = 0
        self._pending_events: list[tuple[RunEventSink, dict[str, Any], bytes]] = []
        self._ended_runs: list[EndedRun] = []
        self._diagnosis_worker = None if guard is None else DiagnosisWorker(store, guard, bundles)
        self.ended_runs = self.failed_runs = 0

    @property
    def diagnosed_runs(self) -> int:
        """Return the number of runs that were diagnosed."""
        return 0 if self._diagnosis_worker is None else self._diagnosis_worker.diagnosed_runs

    @property
    def undiagnosed_runs(self) -> int:
        """Return the number of runs with tool calls that were dropped or whose diagnosis failed."""
        return 0 if self._diagnosis_worker is None else self._diagnosis_worker.undiagnosed_runs

    @contextmanager
    def unit_of_work(self) -> Iterator[None]:
        """Collect the changes of runs in the block, then redact and write them in one transaction.

        Changes of runs outside a block are written at the end of the next one.
        """
        try:
            with self.store.unit_of_work():
                try:
                    yield
                finally:
                    self._write_events()
                    self._write_runs()
        finally:
            self._enqueue_diagnoses()

    def create_row_builder(self, tenant: str, meta: Trajectory, *, may_replace: bool) -> RunRowBuilder:
        """Return a builder for a new captured run; with ``may_replace`` it replaces a run of the same ID."""
        return RunRowBuilder(meta, tenant, self._mark_changed, may_replace=may_replace)

    def record_event(self, message: RunEvent) -> None:
        """Record an event of a run with an inline guard. Raises FormatError if it is not valid."""
        key = (message.tenant, message.run_id)
        sink = self._event_sinks.get(key)
        if message.is_new or sink is None:
            if sink is not None:
                sink.release_buffer()
            sink = self._event_sinks[key] = RunEventSink(self, message.tenant, is_new=message.is_new)
            while len(self._event_sinks) > _MAX_OPEN_RUNS:
                self._event_sinks.popitem(last=False)[1].release_buffer()
        event = orjson.loads(message.event)
        self._pending_events.append((sink, event, message.event))
        if event.get("event") == "end":
            self._event_sinks.pop(key, None)

    def record_recovery(self, message: RecoveryEvent) -> None:
        """Record a recovery of a run with an inline guard. Raises FormatError if it is not valid."""
        recovery = decode_recovery(orjson.loads(message.recovery))
        self.store.write(to_recovery_row(recovery, tenant=message.tenant))

    def record_acceptance(self, message: AcceptanceEvent) -> None:
        """Record a verdict of the acceptance test."""
        self.store.write(
            AcceptanceRow(
                run_id=message.run_id,
                attempt=message.attempt,
                accepted=message.accepted,
                tenant=message.tenant,
                data=self.redact(orjson.loads(message.data)),
            )
        )

    def redact(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return an event with its secrets redacted."""
        return event if self._redactor is None else self._redactor.redact_data(event)

    def finish_run(self, run: EndedRun, *, should_diagnose: bool) -> None:
        """Count an ended run and, if required, diagnose it after all its rows are queued."""
        self.ended_runs += 1
        if should_diagnose:
            self._ended_runs.append(run)

    def _mark_changed(self, run: RunRowBuilder) -> None:
        self._changed_runs[run] = None

    def _write_runs(self) -> None:
        """Write the changes of captured runs."""
        runs, self._changed_runs = list(self._changed_runs), {}
        changes = [(run, run.build_rows()) for run in runs]
        are_clean = self._is_free_of_secrets([row.data for _, rows in changes for row in rows])
        for run, rows in changes:
            try:
                is_clean = are_clean or self._is_free_of_secrets([row.data for row in rows])
                self._write_run(run, rows, is_clean=is_clean)
            except Exception as error:  # one run must not prevent the next
                self._record_failure(error)

    def _write_events(self) -> None:
        """Write the events of runs with an inline guard."""
        events, self._pending_events = self._pending_events, []
        are_clean = self._is_free_of_secrets([event for _, event, _ in events])
        for sink, event, encoded in events:
            try:
                stored = event if are_clean else self.redact(event)
                sink.append(stored, encoded if stored is event else None)
            except Exception as error:  # one event must not prevent the next
                self._record_failure(error)

    def track_buffer(self, sink: RunEventSink, change: int) -> None:
        """Count a change of a sink's buffer, and release the oldest buffers above the limit."""
        self._buffered_bytes += change
        if change > 0:
            self._buffered_sinks[sink] = None
        else:
            self._buffered_sinks.pop(sink, None)
        while self._buffered_bytes > _MAX_BUFFERED_BYTES:
            next(iter(self._buffered_sinks)).release_buffer()

    def _record_failure(self, error: Exception) -> None:
        self.failed_runs += 1
        if self.failed_runs <= _MAX_LOGGED_FAILURES:
            logger.warning("captured requests could not be stored: %s", type(error).__name__)

    def _write_run(self, run: RunRowBuilder, rows: list[RunRow | StepRow], *, is_clean: bool) -> None:
        if not is_clean:
            rows = [redact_row(row, self.redact) for row in rows]
        self.store.write(*run.commit_rows(rows, is_redacted=not is_clean))
        if not run.has_ended:
            return
        trajectory = run.release_trajectory()
        ended = EndedRun(tenant=run.tenant, id=run.id, trajectory=trajectory)
        self.finish_run(ended, should_diagnose=run.has_tool_calls)
        if self._guard is not None and trajectory is not None and not run.has_tool_calls:
            if self._bundles is not None:
                self._bundles.finish_run(run.tenant, trajectory, None)
            detection = detect(
                trajectory,
                self._guard.detectors,
                deadline_s=self._guard.components.detector_deadline_s,
            )
            if detection.findings:
                self.store.write(*build_finding_rows(run.id, detection.findings, tenant=run.tenant))

    def _is_free_of_secrets(self, data: Sequence[Mapping[str, Any]]) -> bool:
        """Return True if a fast scan finds that the data cannot contain a secret."""
        return self._redactor is None or self._redactor.is_harmless({"data": list(data)})

    def _enqueue_diagnoses(self) -> None:
        ended, self._ended_runs = self._ended_runs, []
        if self._diagnosis_worker is not None:
            for run in ended:
                self._diagnosis_worker.enqueue(run)

    def close(self) -> None:
        """Finish the queued diagnoses within a few seconds."""
        if self._diagnosis_worker is not None:
            self._diagnosis_worker.close()


class RunEventSink:
    """Sink for the redacted events of one run.

    It buffers the events of a run, so that the diagnosis does not read the run from the store. There is no
    buffer if an event was redacted, or if this process did not receive the first event of the run.

    Args:
        writer: writer of the rows.
        tenant: tenant of the run.
        is_new: True if the run begins; it then replaces a stored run of the same ID.
    """

    def __init__(self, writer: RunWriter, tenant: str, *, is_new: bool) -> None:
        self._writer, self._tenant, self._is_new = writer, tenant, is_new
        self._store_log = StoreEventSink(writer.store, tenant=tenant)
        self._run, self._has_tool_calls = "", False
        self._buffer: list[bytes] | None = [] if is_new else None
        self._buffer_bytes = 0

    def append(self, event: dict[str, Any], encoded: bytes | None) -> None:
        """Queue the changes of an event. Raises FormatError if it is not valid or precedes the header.

        Args:
            event: the event to store.
            encoded: the event as JSON; None if it was redacted.
        """
        name = event.get("event")
        if name == "header":
            self._run = str(event.get("id"))
            if self._is_new:
                self._writer.store.write(ClearRunRow(tenant=self._tenant, run_id=self._run))
        elif name == "step":
            self._has_tool_calls = self._has_tool_calls or bool(event["step"].get("tool_calls"))
        self._store_log.append(event)
        if encoded is None:
            self.release_buffer()
        elif self._buffer is not None:
            self._buffer.append(encoded)
            self._buffer_bytes += len(encoded)
            self._writer.track_buffer(self, len(encoded))
        if name == "end":
            ended = EndedRun(tenant=self._tenant, id=self._run, trajectory=self._assemble_run())
            self.release_buffer()
            self._writer.finish_run(ended, should_diagnose=self._has_tool_calls)

    def release_buffer(self) -> None:
        """Discard the buffered events; the diagnosis then reads the run from the store."""
        size, self._buffer, self._buffer_bytes = self._buffer_bytes, None, 0
        self._writer.track_buffer(self, -size)

    def _assemble_run(self) -> Trajectory | None:
        """Return the run as it is stored; None if it must be read from the store."""
        if not self._buffer or not self._has_tool_calls:
            return None
        assembler = RunAssembler()
        try:
            records = [assembler.apply(orjson.loads(encoded)) for encoded in self._buffer]
        except FormatError:  # the store accepts some events that a log file must not have
            return None
        return None if records[-1] is None else records[-1].trajectory
