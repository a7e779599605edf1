"""Snapshots through which each worker of a machine can report on all workers.

Each worker writes its metrics and status to its own file about once a second. The worker that serves a
request for metrics or status adds the files of the others. Counters must not decrease when a worker ends, so
one more file has the counts of ended workers. Only the user of the proxy can access the folder. Files of an
unexpected shape are ignored.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from agentguard_server.file_lock import lock_file
from agentguard_server.proxy.telemetry.metrics import MetricSet

_FILE_NAME: Final = re.compile(r"worker-(\d+)-(\d+)\.json")
_ENDED_FILE: Final = "ended.json"
_MAX_FILE_BYTES: Final = 32 * 1024 * 1024
STALE_AFTER_S: Final = 10.0
"""Seconds without a snapshot after which a worker counts as unresponsive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSnapshot:
    """Latest snapshot of a worker.

    Attributes:
        worker: number of the worker.
        pid: process ID of the worker.
        published_at: time of the snapshot in seconds since 1970.
        metrics: metrics of the worker.
        status: status of the worker for ``/status``.
    """

    worker: int
    pid: int
    published_at: float
    metrics: MetricSet
    status: dict[str, Any] = field(default_factory=dict)

    @property
    def is_fresh(self) -> bool:
        """Return whether the snapshot is recent enough for its worker to count as responsive."""
        return abs(time.time() - self.published_at) <= STALE_AFTER_S


class SnapshotDirectory:
    """Snapshots of all workers of a machine.

    Args:
        folder: folder of the snapshots; it is created for this user only. None for a single worker.
        worker: number of this worker.
    """

    def __init__(self, folder: Path | None, worker: int = 0) -> None:
        self._folder, self._worker, self._pid = folder, worker, os.getpid()
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @staticmethod
    def create_folder() -> Path:
        """Create a folder for a group of workers; the caller must remove it."""
        return Path(tempfile.mkdtemp(prefix="agentguard-workers-"))

    def load_secret(self) -> bytes:
        """Return 32 random bytes that all workers of the folder share; the first call creates them."""
        if self._folder is None:
            return secrets.token_bytes(32)
        path = self._folder / "secret"
        with self._lock():
            if not path.exists():
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                os.write(file, secrets.token_bytes(32))
                os.close(file)
            return path.read_bytes()

    def publish(self, metrics: MetricSet, status: dict[str, Any]) -> None:
        """Write this worker's snapshot. Raises OSError."""
        if self._folder is None:
            return
        data = {"at": time.time(), "tally": metrics.to_dict(), "state": status}
        _write_json(self._folder / f"worker-{self._worker}-{self._pid}.json", data)

    def list_live_snapshots(self) -> list[WorkerSnapshot]:
        """Return the snapshots of the other running workers, sorted by worker number."""
        return sorted(self._iter_snapshots(include_dead=False), key=lambda one: (one.worker, one.pid))

    def read_metrics(self) -> tuple[list[WorkerSnapshot], MetricSet | None]:
        """Return the snapshots of the other workers and the metrics of ended workers.

        Each worker is in exactly one of the two, also if it ends during the call.
        """
        if self._folder is None:
            return [], None
        # The lock prevents that another worker absorbs a file during the read.
        with contextlib.suppress(OSError), self._lock():
            self._absorb_dead_workers()
            return list(self._iter_snapshots(include_dead=True)), self._read_ended_metrics()
        return self.list_live_snapshots(), self._read_ended_metrics()

    def withdraw(self) -> None:
        """Add this worker's counts to those of ended workers and remove its snapshot."""
        if self._folder is not None:
            with contextlib.suppress(OSError), self._lock():
                self._absorb(self._folder / f"worker-{self._worker}-{self._pid}.json")

    def _read_ended_metrics(self) -> MetricSet | None:
        return None if self._folder is None else _parse_metrics(_read_json(self._folder / _ENDED_FILE))

    def _iter_snapshots(self, *, include_dead: bool) -> Iterator[WorkerSnapshot]:
        for path, worker, pid in self._iter_files():
            if pid == self._pid or not (include_dead or _is_process_alive(pid)):
                continue
            data = _read_json(path)
            metrics = _parse_metrics(data)
            if metrics is not None and isinstance(data.get("at"), int | float):
                status = data.get("state")
                yield WorkerSnapshot(
                    worker=worker,
                    pid=pid,
                    published_at=float(data["at"]),
                    metrics=metrics,
                    status=status if isinstance(status, dict) else {},
                )

    def _iter_files(self) -> Iterator[tuple[Path, int, int]]:
        if self._folder is None:
            return
        try:
            names = sorted(os.listdir(self._folder))
        except OSError:
            return
        for name in names:
            if found := _FILE_NAME.fullmatch(name):
                yield self._folder / name, int(found[1]), int(found[2])

    def _absorb_dead_workers(self) -> None:
        for path, _, pid in list(self._iter_files()):
            if pid != self._pid and not _is_process_alive(pid):
                self._absorb(path)

    def _absorb(self, path: Path) -> None:
        """Add a snapshot's counters, without its gauges, to those of ended workers; remove the snapshot."""
        assert self._folder is not None
        metrics = _parse_metrics(_read_json(path))
        if metrics is not None:
            total = MetricSet(metrics.bounds)
            ended = self._read_ended_metrics()
            if ended is not None:
                total.merge(ended, include_gauges=False)
            total.merge(metrics, include_gauges=False)
            _write_json(self._folder / _ENDED_FILE, {"tally": total.to_dict()})
        path.unlink(missing_ok=True)

    def _lock(self) -> AbstractContextManager[None]:
        assert self._folder is not None
        return lock_file(self._folder / "lock")


def _is_process_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _write_json(path: Path, data: dict[str, Any]) -> None:
    """Replace a file atomically: a concurrent reader gets the old or the new content."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_bytes(orjson.dumps(data, option=orjson.OPT_NON_STR_KEYS))
    temporary.replace(path)


def _read_json(path: Path) -> Any:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            return {}
        data = orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _parse_metrics(data: Any) -> MetricSet | None:
    try:
        return MetricSet.from_dict(data["tally"])
    except (KeyError, TypeError, ValueError):
        return None
