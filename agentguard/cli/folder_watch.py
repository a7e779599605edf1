"""Watch of a folder: the runs of files that appear or grow, each content once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from agentguard.errors import ConfigError, InputError
from agentguard.trajectory.content_digest import compute_content_digest
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import list_run_files, read
from agentguard.trajectory.model import Record

_Signature = tuple[int, int]
"""Modification time in nanoseconds and size of a file."""


@dataclass(slots=True, kw_only=True)
class FolderWatch:
    """Poller of a folder and its subfolders.

    Attributes:
        folder: the folder.
        format: format of the files; None detects it.
        quiet_s: seconds without a change after which a file is read.
        interval_s: seconds between polls.
        sleep, now: clock, for tests; ``now`` returns epoch seconds.
    """

    folder: Path
    format: str | None = None
    quiet_s: float = 2.0
    interval_s: float = 1.0
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.time
    _known_files: dict[Path, _Signature] = field(default_factory=dict)
    _known_runs: set[bytes] = field(default_factory=set)

    def iter_records(self) -> Iterator[Record | UnreadableRecord]:
        """Yield new runs until the user presses Ctrl-C; a changed run is a new one.

        Raises:
            ConfigError: the folder does not exist.
        """
        if not self.folder.is_dir():
            raise ConfigError(f"--watch {self.folder}: there is no such folder")
        try:
            while True:
                yield from self.poll()
                self.sleep(self.interval_s)
        except KeyboardInterrupt:
            return

    def poll(self) -> Iterator[Record | UnreadableRecord]:
        """Yield the new runs of the files that have changed and are quiet now."""
        for path in list_run_files(self.folder):
            signature = _read_signature(path)
            if signature is None or self._known_files.get(path) == signature:
                continue
            if self.now() - signature[0] / 1e9 < self.quiet_s:
                continue
            self._known_files[path] = signature
            yield from self._read_new_runs(path)

    def _read_new_runs(self, path: Path) -> Iterator[Record | UnreadableRecord]:
        try:
            for record in read(path, format=self.format):
                if isinstance(record, UnreadableRecord):
                    yield record
                elif (digest := compute_content_digest(record.trajectory)) not in self._known_runs:
                    self._known_runs.add(digest)
                    yield record
        except InputError as error:
            yield UnreadableRecord(error=error.with_location(file=str(path)))


def _read_signature(path: Path) -> _Signature | None:
    try:
        status = path.stat()
    except OSError:  # The file was removed after the folder was listed.
        return None
    return status.st_mtime_ns, status.st_size
