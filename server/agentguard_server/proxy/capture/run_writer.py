"""Runs in the store: written as they happen, diagnosed when they have ended."""

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
from agentguard.localize.serialization import build_diagnosis_rows
from agentguard.recover.persistence import decode_recovery, to_recovery_row
from agentguard.store.db.rows import ClearRow, RunRow, StepRow
from agentguard.store.event_sink import StoreLog
from agentguard.store.store import Store
from agentguard.trajectory.model import Trajectory
from agentguard.trajectory.redaction import Redactor
from agentguard_server.proxy.capture.protocol import RecoveryEvent, RunEvent
from agentguard_server.proxy.capture.run_rows import RunRowBuilder, cleaned

logger = logging.getLogger("agentguard.keeper")

_MOST_RUNS: Final = 4096
_MOST_WAITING: Final = 1024
_FAILURES_TOLD: Final = 100
_FLUSH_S: Final = 5.0
_WRITTEN_S: Final = 30.0


class RunWriter:
    """Writes runs, and has them diagnosed.

    Args:
        store: where.
        guard: diagnoses, and looks through the runs in which no tool was called; None leaves both.
        redact: whether secrets are taken out first.

    Attributes:
        ended: runs that have ended.
        diagnosed: those of them that were diagnosed: the ones in which tools were called.
        failed: runs of which something could not be kept.
    """

    def __init__(self, store: Store, guard: Guard | None, *, redact: bool) -> None:
        self.store, self._guard = store, guard
        self._redactor = Redactor() if redact else None
        self._logs: OrderedDict[tuple[str, str], RunEventSink] = OrderedDict()
        self._touched: dict[RunRowBuilder, None] = {}
        self._events: list[tuple[RunEventSink, dict[str, Any]]] = []
        self._over: list[tuple[str, str]] = []
        self._due: queue.Queue[tuple[str, str] | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._diagnose, name="agentguard-diagnosing", daemon=True)
        self._thread.start()
        self.ended = self.diagnosed = self.failed = 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """What happens to runs inside of it is looked through at once, and becomes durable as one.

        Nothing is written outside of it.
        """
        try:
            with self.store.unit_of_work():
                try:
                    yield
                finally:
                    self._write_events()
                    self._write()
        finally:
            self._put_over()

    def passed(self, tenant: str, meta: Trajectory) -> RunRowBuilder:
        """Takes what happens in a new run that has passed; what is stored under its id is replaced."""
        return RunRowBuilder(meta, tenant, self._note)

    def happened(self, message: RunEvent) -> None:
        """An event of a run that a worker guards. Raises FormatError if it is none."""
        key = (message.tenant, message.run)
        log = self._logs.get(key)
        if message.fresh or log is None:
            log = self._logs[key] = RunEventSink(self, message.tenant, fresh=message.fresh)
            while len(self._logs) > _MOST_RUNS:
                self._logs.popitem(last=False)
        event = orjson.loads(message.event)
        self._events.append((log, event))
        if event.get("event") == "end":
            self._logs.pop(key, None)

    def recovered(self, message: RecoveryEvent) -> None:
        """A recovery of a run that a worker guards. Raises FormatError if it is none."""
        recovery = decode_recovery(orjson.loads(message.recovery))
        self.store.write(to_recovery_row(recovery, tenant=message.tenant))

    def clean(self, event: dict[str, Any]) -> dict[str, Any]:
        """An event without its secrets."""
        return event if self._redactor is None else self._redactor.redact_data(event)

    def over(self, tenant: str, run: str, *, worth: bool) -> None:
        """A run has ended; ``worth`` says whether it is diagnosed, once all of it is written."""
        self.ended += 1
        if worth and self._guard is not None:
            self._over.append((tenant, run))

    def _note(self, run: RunRowBuilder) -> None:
        self._touched[run] = None

    def _write(self) -> None:
        """Write what is new of runs that have passed."""
        runs, self._touched = list(self._touched), {}
        made = [(run, run.rows()) for run in runs]
        harmless = self._harmless([row.data for _, rows in made for row in rows])
        for run, rows in made:
            try:
                plain = harmless or self._harmless([row.data for row in rows])
                self._write_run(run, rows, harmless=plain)
            except Exception as error:  # whatever passed, the next run is no worse for it
                self._not_kept(error)

    def _write_events(self) -> None:
        """Write what happened to runs that workers guard."""
        events, self._events = self._events, []
        harmless = self._harmless([event for _, event in events])
        for log, event in events:
            try:
                log.append(event if harmless else self.clean(event))
            except Exception as error:  # as above
                self._not_kept(error)

    def _not_kept(self, error: Exception) -> None:
        self.failed += 1
        if self.failed <= _FAILURES_TOLD:
            logger.warning("what passed could not be kept: %s", type(error).__name__)

    def _write_run(self, run: RunRowBuilder, rows: list[RunRow | StepRow], *, harmless: bool) -> None:
        if not harmless:
            rows = [cleaned(row, self.clean) for row in rows]
        self.store.write(*run.written(rows, was_cleaned=not harmless))
        if not run.ended:
            return
        self.over(run.tenant, run.id, worth=run.worth)
        if self._guard is not None and not run.worth:
            found = detect(
                run.run(), self._guard.detectors, deadline_s=self._guard.components.detector_deadline_s
            )
            if found.findings:
                self.store.write(*build_finding_rows(run.id, found.findings, tenant=run.tenant))

    def _harmless(self, data: Sequence[Mapping[str, Any]]) -> bool:
        """Whether it is plain at one look that there is no secret in any of it."""
        return self._redactor is None or self._redactor.is_harmless({"data": list(data)})

    def _put_over(self) -> None:
        over, self._over = self._over, []
        for one in over:
            try:
                self._due.put_nowait(one)
            except queue.Full:
                logger.warning("a run that has ended was not diagnosed: too many wait for it")

    def close(self) -> None:
        """Diagnose what waits, for some seconds."""
        try:
            self._due.put(None, timeout=_FLUSH_S)
        except queue.Full:
            return
        self._thread.join(_FLUSH_S)

    def _diagnose(self) -> None:
        while (due := self._due.get()) is not None:
            try:
                self._diagnosed(*due)
            except AgentGuardError as error:
                logger.warning("a run that has ended was not diagnosed: %s", error)
            except Exception as error:  # one run must not keep the next from being diagnosed
                logger.error("a run that has ended was not diagnosed: %s", type(error).__name__)

    def _diagnosed(self, tenant: str, run: str) -> None:
        assert self._guard is not None  # for mypy: nothing waits without one
        self.store.flush(_WRITTEN_S, haste=False)  # gathered with what else waits
        found = self.store.trajectory(run, tenant=tenant)
        if found is not None:
            self.store.write(*build_diagnosis_rows(self._guard.diagnose(found), tenant=tenant))
            self.diagnosed += 1


class RunEventSink:
    """Takes the events of one run, without their secrets.

    Args:
        kept: writes them.
        tenant: whose run it is.
        fresh: whether the run begins, so that what is stored under its id is replaced.
    """

    def __init__(self, kept: RunWriter, tenant: str, *, fresh: bool) -> None:
        self._kept, self._tenant, self._fresh = kept, tenant, fresh
        self._log = StoreLog(kept.store, tenant=tenant)
        self._run, self._worth = "", False

    def append(self, event: dict[str, Any]) -> None:
        """Queue what an event changes. Raises FormatError on an event that is none, or before any header."""
        name = event.get("event")
        if name == "header":
            self._run = str(event.get("id"))
            if self._fresh:
                self._kept.store.write(ClearRow(tenant=self._tenant, run_id=self._run))
        elif name == "step":
            self._worth = self._worth or bool(event["step"].get("tool_calls"))
        self._log.append(event)
        if name == "end":
            self._kept.over(self._tenant, self._run, worth=self._worth)
