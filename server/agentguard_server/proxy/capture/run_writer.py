"""Writer of captured runs: stores them as they happen and diagnoses them when they have ended."""

from __future__ import annotations

import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import orjson

from agentguard.detect.persistence import build_finding_rows
from agentguard.detect.runner import detect
from agentguard.errors import AgentGuardError
from agentguard.guard import Guard
from agentguard.judge.cache import VerdictScope
from agentguard.localize.serialization import build_diagnosis_rows
from agentguard.recover.persistence import decode_recovery, to_recovery_row
from agentguard.store.db.rows import AcceptanceRow, ClearRunRow, RunRow, StepRow
from agentguard.store.event_sink import StoreEventSink
from agentguard.store.store import Store
from agentguard.trajectory.model import Trajectory
from agentguard.trajectory.redaction import Redactor
from agentguard_server.proxy.capture.bundle_writer import RunBundleWriter
from agentguard_server.proxy.capture.protocol import AcceptanceEvent, RecoveryEvent, RunEvent
from agentguard_server.proxy.capture.run_rows import RunRowBuilder, redact_row

logger = logging.getLogger("agentguard.collector")

_RunKey = tuple[str, str]
"""Tenant and ID of a run."""

_MAX_OPEN_RUNS: Final = 4096
_MAX_PENDING_DIAGNOSES: Final = 1024
_MAX_LOGGED_FAILURES: Final = 100
_SHUTDOWN_TIMEOUT_S: Final = 5.0
_STORE_FLUSH_TIMEOUT_S: Final = 30.0


class RunWriter:
    """Writer of runs, with a thread for diagnoses.

    Args:
        store: store for the runs.
        guard: guard that diagnoses runs with tool calls and runs its detectors on others; None for neither.
        redact: True to redact secrets before a write.
        bundles: writer of bundles; None for no bundles.

    Attributes:
        ended_runs: number of runs that have ended.
        diagnosed_runs: number of runs that were diagnosed.
        undiagnosed_runs: number of runs with tool calls that were not diagnosed: too many waited, or the
            diagnosis failed.
        failed_runs: number of runs or events that could not be stored.
    """

    def __init__(
        self, store: Store, guard: Guard | None, *, redact: bool, bundles: RunBundleWriter | None = None
    ) -> None:
        self.store, self._guard, self._bundles = store, guard, bundles
        self._redactor = Redactor() if redact else None
        self._event_sinks: OrderedDict[_RunKey, RunEventSink] = OrderedDict()
        self._changed_runs: dict[RunRowBuilder, None] = {}
        self._pending_events: list[tuple[RunEventSink, dict[str, Any]]] = []
        self._ended_keys: list[_RunKey] = []
        self._diagnosis_queue: queue.Queue[_RunKey | None] = queue.Queue(_MAX_PENDING_DIAGNOSES)
        self._thread = threading.Thread(
            target=self._run_diagnosis_loop, name="agentguard-diagnosing", daemon=True
        )
        self._thread.start()
        self.ended_runs = self.diagnosed_runs = self.undiagnosed_runs = self.failed_runs = 0

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

    def create_row_builder(self, tenant: str, meta: Trajectory) -> RunRowBuilder:
        """Return a builder for a new captured run; it replaces a stored run of the same ID."""
        return RunRowBuilder(meta, tenant, self._mark_changed)

    def record_event(self, message: RunEvent) -> None:
        """Record an event of a run with an inline guard. Raises FormatError if it is not valid."""
        key = (message.tenant, message.run_id)
        log = self._event_sinks.get(key)
        if message.is_new or log is None:
            log = self._event_sinks[key] = RunEventSink(self, message.tenant, is_new=message.is_new)
            while len(self._event_sinks) > _MAX_OPEN_RUNS:
                self._event_sinks.popitem(last=False)
        event = orjson.loads(message.event)
        self._pending_events.append((log, event))
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

    def finish_run(self, tenant: str, run: str, *, should_diagnose: bool) -> None:
        """Count an ended run and, if required, diagnose it after all its rows are written."""
        self.ended_runs += 1
        if should_diagnose and self._guard is not None:
            self._ended_keys.append((tenant, run))

    def _mark_changed(self, run: RunRowBuilder) -> None:
        self._changed_runs[run] = None

    def _write_runs(self) -> None:
        """Write the changes of captured runs."""
        runs, self._changed_runs = list(self._changed_runs), {}
        made = [(run, run.build_rows()) for run in runs]
        harmless = self._is_free_of_secrets([row.data for _, rows in made for row in rows])
        for run, rows in made:
            try:
                plain = harmless or self._is_free_of_secrets([row.data for row in rows])
                self._write_run(run, rows, is_clean=plain)
            except Exception as error:  # one run must not prevent the next
                self._record_failure(error)

    def _write_events(self) -> None:
        """Write the events of runs with an inline guard."""
        events, self._pending_events = self._pending_events, []
        harmless = self._is_free_of_secrets([event for _, event in events])
        for log, event in events:
            try:
                log.append(event if harmless else self.redact(event))
            except Exception as error:  # one event must not prevent the next
                self._record_failure(error)

    def _record_failure(self, error: Exception) -> None:
        self.failed_runs += 1
        if self.failed_runs <= _MAX_LOGGED_FAILURES:
            logger.warning("what passed could not be kept: %s", type(error).__name__)

    def _write_run(self, run: RunRowBuilder, rows: list[RunRow | StepRow], *, is_clean: bool) -> None:
        if not is_clean:
            rows = [redact_row(row, self.redact) for row in rows]
        self.store.write(*run.commit_rows(rows, is_redacted=not is_clean))
        if not run.has_ended:
            return
        self.finish_run(run.tenant, run.id, should_diagnose=run.has_tool_calls)
        if self._guard is not None and not run.has_tool_calls:
            whole = run.build_trajectory()
            if self._bundles is not None:
                self._bundles.finish_run(run.tenant, whole, None)
            found = detect(
                whole,
                self._guard.detectors,
                deadline_s=self._guard.components.detector_deadline_s,
            )
            if found.findings:
                self.store.write(*build_finding_rows(run.id, found.findings, tenant=run.tenant))

    def _is_free_of_secrets(self, data: Sequence[Mapping[str, Any]]) -> bool:
        """Return True if a fast scan finds that the data cannot contain a secret."""
        return self._redactor is None or self._redactor.is_harmless({"data": list(data)})

    def _enqueue_diagnoses(self) -> None:
        keys, self._ended_keys = self._ended_keys, []
        for key in keys:
            try:
                self._diagnosis_queue.put_nowait(key)
            except queue.Full:
                self._record_undiagnosed("too many runs wait")

    def close(self) -> None:
        """Finish the queued diagnoses within a few seconds and stop the thread."""
        try:
            self._diagnosis_queue.put(None, timeout=_SHUTDOWN_TIMEOUT_S)
        except queue.Full:
            return
        self._thread.join(_SHUTDOWN_TIMEOUT_S)

    def _run_diagnosis_loop(self) -> None:
        while keys := self._take_ended_runs():
            try:
                # Once for all runs: each flush commits a transaction.
                self.store.flush(_STORE_FLUSH_TIMEOUT_S, immediate=False)
            except AgentGuardError as error:
                for _ in keys:
                    self._record_undiagnosed(str(error))
                continue
            for key in keys:
                try:
                    self._diagnose_run(*key)
                except AgentGuardError as error:
                    self._record_undiagnosed(str(error))
                except Exception as error:  # one run must not keep the next from being diagnosed
                    self._record_undiagnosed(type(error).__name__)

    def _take_ended_runs(self) -> list[_RunKey]:
        """Wait for ended runs and return all that wait; return an empty list after `close`."""
        keys: list[_RunKey] = []
        while not keys or not self._diagnosis_queue.empty():
            key = self._diagnosis_queue.get()
            if key is None:
                if keys:
                    self._diagnosis_queue.put(None)  # for the next call
                return keys
            keys.append(key)
        return keys

    def _diagnose_run(self, tenant: str, run: str) -> None:
        assert self._guard is not None  # for mypy: only a guard queues diagnoses
        found = self.store.get_trajectory(run, tenant=tenant)
        if found is not None:
            with VerdictScope(self.store, tenant=tenant):
                diagnosis = self._guard.diagnose(found)
            self.store.write(*build_diagnosis_rows(diagnosis, tenant=tenant))
            self.diagnosed_runs += 1
            if self._bundles is not None:
                self._bundles.finish_run(tenant, found, diagnosis)

    def _record_undiagnosed(self, reason: str) -> None:
        self.undiagnosed_runs += 1
        if self.undiagnosed_runs <= _MAX_LOGGED_FAILURES:
            logger.warning("a run that has ended was not diagnosed: %s", reason)


class RunEventSink:
    """Sink for the redacted events of one run.

    Args:
        writer: writer of the rows.
        tenant: tenant of the run.
        is_new: True if the run begins; it then replaces a stored run of the same ID.
    """

    def __init__(self, writer: RunWriter, tenant: str, *, is_new: bool) -> None:
        self._writer, self._tenant, self._is_new = writer, tenant, is_new
        self._store_log = StoreEventSink(writer.store, tenant=tenant)
        self._run, self._has_tool_calls = "", False

    def append(self, event: dict[str, Any]) -> None:
        """Queue the changes of an event. Raises FormatError if it is not valid or precedes the header."""
        name = event.get("event")
        if name == "header":
            self._run = str(event.get("id"))
            if self._is_new:
                self._writer.store.write(ClearRunRow(tenant=self._tenant, run_id=self._run))
        elif name == "step":
            self._has_tool_calls = self._has_tool_calls or bool(event["step"].get("tool_calls"))
        self._store_log.append(event)
        if name == "end":
            self._writer.finish_run(self._tenant, self._run, should_diagnose=self._has_tool_calls)
