"""What the workers of one machine tell each other, so that whichever of them is asked answers for all.

Each worker writes its counts and its state into a file of its own, about once a second; who is asked adds up
the files of the others. Counts must not fall when a worker ends: those of ended workers are kept in one file
more. The folder belongs to this user alone, and nothing in it is believed that is not of the expected shape.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from agentguard_server.proxy.telemetry.counters import MetricSet

_FILE_NAME: Final = re.compile(r"worker-(\d+)-(\d+)\.json")
_ENDED_FILE: Final = "ended.json"
_MAX_FILE_BYTES: Final = 32 * 1024 * 1024
STALE_AFTER_S: Final = 10.0
"""Seconds without news after which a worker does not count as answering."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSnapshot:
    """What a worker told last.

    Attributes:
        worker: its number.
        pid: its process.
        at: when, in seconds since 1970.
        tally: its counts.
        state: what it says of itself, for ``/status``.
    """

    worker: int
    pid: int
    published_at: float
    metrics: MetricSet
    status: dict[str, Any] = field(default_factory=dict)

    @property
    def is_fresh(self) -> bool:
        """Whether it told so lately that it may be taken to answer."""
        return abs(time.time() - self.published_at) <= STALE_AFTER_S


class SnapshotDirectory:
    """The sheets of all workers.

    Args:
        folder: where they lie; made, for this user alone. None: there is one worker, and nothing to tell.
        worker: number of this one.
    """

    def __init__(self, folder: Path | None, worker: int = 0) -> None:
        self._folder, self._worker, self._pid = folder, worker, os.getpid()
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @staticmethod
    def create_folder() -> Path:
        """A new folder for a group of workers; whoever makes it removes it."""
        return Path(tempfile.mkdtemp(prefix="agentguard-workers-"))

    def load_secret(self) -> bytes:
        """32 random bytes that all workers of the folder know, and nobody after them."""
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
        """Write this worker's sheet. Raises OSError."""
        if self._folder is None:
            return
        data = {"at": time.time(), "tally": metrics.to_dict(), "state": status}
        _write_json(self._folder / f"worker-{self._worker}-{self._pid}.json", data)

    def list_live_snapshots(self) -> list[WorkerSnapshot]:
        """The sheets of the other workers that live, by number."""
        return sorted(self._iter_snapshots(include_dead=False), key=lambda sheet: (sheet.worker, sheet.pid))

    def read_metrics(self) -> tuple[list[WorkerSnapshot], MetricSet | None]:
        """What all others have counted: the sheets of workers, and the counts of those that have ended.

        Each worker is in one of the two, also one that ends while they are read; those that ended just now
        are added to the ended ones first.
        """
        if self._folder is None:
            return [], None
        with contextlib.suppress(OSError), self._lock():  # nobody takes a sheet over meanwhile
            self._absorb_dead_workers()
            return list(self._iter_snapshots(include_dead=True)), self._read_ended_metrics()
        return self.list_live_snapshots(), self._read_ended_metrics()

    def withdraw(self) -> None:
        """This worker ends: its counts stay."""
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
            tally = _parse_metrics(data)
            if tally is not None and isinstance(data.get("at"), int | float):
                state = data.get("state")
                state = state if isinstance(state, dict) else {}
                yield WorkerSnapshot(
                    worker=worker, pid=pid, published_at=float(data["at"]), metrics=tally, status=state
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
        """Add a sheet's counts to those of the ended; what only held then is left out."""
        assert self._folder is not None
        tally = _parse_metrics(_read_json(path))
        if tally is not None:
            total = MetricSet(tally.bounds)
            before = self._read_ended_metrics()
            if before is not None:
                total.merge(before, include_gauges=False)
            total.merge(tally, include_gauges=False)
            _write_json(self._folder / _ENDED_FILE, {"tally": total.to_dict()})
        path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        assert self._folder is not None
        file = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)


def _is_process_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _write_json(path: Path, data: dict[str, Any]) -> None:
    """Whole or not at all: whoever reads meanwhile gets what was there before."""
    made = path.with_suffix(f".{os.getpid()}.tmp")
    made.write_bytes(orjson.dumps(data, option=orjson.OPT_NON_STR_KEYS))
    made.replace(path)


def _read_json(path: Path) -> Any:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            return {}
        found = orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _parse_metrics(data: Any) -> MetricSet | None:
    try:
        return MetricSet.from_dict(data["tally"])
    except (KeyError, TypeError, ValueError):
        return None
