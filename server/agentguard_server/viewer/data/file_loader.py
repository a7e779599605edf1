"""Background loader that reads, diagnoses and stores the runs of files while the viewer is in use."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from agentguard.config.prices import PriceTable
from agentguard.errors import AgentGuardError, InputError
from agentguard.localize.base import Diagnosis
from agentguard.localize.serialization import build_diagnosis_rows
from agentguard.store.db.rows import compute_digest
from agentguard.store.run_id_assignment import RunIdAssigner
from agentguard.store.store import Store
from agentguard.trajectory.costs import price_run
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import read
from agentguard.trajectory.model import Record, Trajectory

_LOG = logging.getLogger(__name__)

MAX_SHOWN_ERRORS: Final = 100
_MAX_PENDING_ROWS: Final = 5_000
"""Number of unwritten rows at which the loader waits; the store discards rows beyond its own limit."""
_FLUSH_TIMEOUT_S: Final = 60.0
_MAX_ID_CHARS: Final = 256

Diagnose = Callable[[Trajectory], Diagnosis]


@dataclass(slots=True)
class LoadProgress:
    """Progress of a loader. One thread writes it; any thread may read it.

    Attributes:
        total: number of the files and folders to read.
        done: number of files and folders that were read.
        runs: number of runs found.
        broken: number of records that could not be read.
        running: whether the loader still runs.
        errors: messages for unreadable records, at most `MAX_SHOWN_ERRORS`.
    """

    total: int = 0
    done: int = 0
    runs: int = 0
    broken: int = 0
    running: bool = False
    errors: list[str] = field(default_factory=list)

    def to_event_data(self) -> dict[str, Any] | None:
        """Return the progress as event data; None if there are no files to read."""
        if not self.total:
            return None
        return {
            "total": self.total,
            "done": self.done,
            "runs": self.runs,
            "broken": self.broken,
            "running": self.running,
        }

    def add_error(self, text: str) -> None:
        """Count a record that could not be read, and keep its message."""
        self.broken += 1
        if len(self.errors) < MAX_SHOWN_ERRORS:
            self.errors.append(text)


class FileLoader:
    """Loader that reads files into a store in its own thread.

    Args:
        store: store that receives the runs.
        paths: files and folders of any known format.
        diagnose: function that diagnoses a run; None stores runs without a diagnosis.
        tenant: tenant that owns the runs.
        prices: price table, for steps with tokens and without a cost.
        on_error: called with a message for each unreadable record.

    Attributes:
        progress: progress of the loading.
    """

    def __init__(
        self,
        store: Store,
        paths: Sequence[Path],
        *,
        diagnose: Diagnose | None = None,
        tenant: str = "",
        prices: PriceTable | None = None,
        on_error: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store, self._paths, self._diagnose = store, tuple(paths), diagnose
        self._tenant, self._prices, self._on_error = tenant, prices or {}, on_error
        self._ids: set[str] = set()
        self._id_assigner = RunIdAssigner(store, tenant=tenant)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.progress = LoadProgress(total=len(self._paths), running=bool(self._paths))

    def start(self) -> None:
        """Start the thread."""
        if self._paths:
            self._thread = threading.Thread(target=self.run, name="agentguard-view-load", daemon=True)
            self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """Stop reading; wait at most ``timeout_s`` seconds for a diagnosis in progress."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def run(self) -> None:
        """Read all files in the calling thread."""
        progress = self.progress
        try:
            for path in self._paths:
                for record in self._read_records(path):
                    if self._stop.is_set():
                        return
                    self._store_record(record)
                progress.done += 1
        except AgentGuardError as error:
            self._report_error(str(error))
        except Exception as error:  # the viewer continues with the runs read so far
            _LOG.exception("reading stopped")
            self._report_error(f"reading stopped: {type(error).__name__}")
        finally:
            progress.running = False

    def _read_records(self, path: Path) -> Iterator[Record]:
        try:
            for record in read(path):
                if isinstance(record, UnreadableRecord):
                    self._report_error(str(record.error))
                else:
                    yield record
        except InputError as error:
            # an unusable path must not prevent the loading of the others
            self._report_error(str(error.with_location(file=str(path))))

    def _store_record(self, record: Record) -> None:
        run = replace(record.trajectory, id=self._make_unique_id(record.trajectory.id))
        run = self._id_assigner.assign_id(price_run(run, self._prices), record.file)
        self._store.write_run(replace(record, trajectory=run), tenant=self._tenant)
        if self._diagnose is not None:
            self._store.write(*build_diagnosis_rows(self._diagnose(run), tenant=self._tenant))
        self.progress.runs += 1
        if self._store.get_health().pending > _MAX_PENDING_ROWS:
            self._store.flush(_FLUSH_TIMEOUT_S)

    def _make_unique_id(self, id: str) -> str:
        """Return an id that is valid in the store and unique among these files."""
        name = (
            id
            if id and len(id) <= _MAX_ID_CHARS - 8 and id.isprintable()
            else f"run-{compute_digest(id)[:16]}"
        )
        unique_id, number = name, 2
        while unique_id in self._ids:
            unique_id, number = f"{name}~{number}", number + 1
        self._ids.add(unique_id)
        return unique_id

    def _report_error(self, text: str) -> None:
        self.progress.add_error(text)
        self._on_error(text)
