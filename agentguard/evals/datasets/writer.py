"""Writer of injected runs: an event log, a compressed event log, or a folder with one log per run.

An incomplete output has the suffix ``.part``; a file under its final name is complete. After an interruption,
the same command continues: it keeps the complete runs and cuts off a torn run at the end. The plan file
beside the part records the command, so that two commands never write to one output.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import orjson

from agentguard.errors import ConfigError
from agentguard.trajectory.event_log.recorder import build_events
from agentguard.trajectory.model import Record
from agentguard.trajectory.safe_json import dumps

_END = b'{"event":"end"}\n'
_LEVEL = 9
_SAFE = re.compile(r"[\w-]{4,80}", re.ASCII)


class DatasetWriter:
    """Writer that receives runs one by one; `finish` moves the result to its final name.

    Args:
        path: ``*.jsonl``, ``*.jsonl.gz``, or any other name for a folder.
        plan: parameters of the command, stored while it runs.
        resume: continue the output of an interrupted command.
        force: replace an existing output.

    Raises:
        ConfigError: the output exists, cannot be written, or was begun by another command.
    """

    def __init__(
        self, path: Path, plan: Mapping[str, Any], *, resume: bool = False, force: bool = False
    ) -> None:
        self.path = path
        self.is_packed = path.name.lower().endswith(".jsonl.gz")
        self.is_folder = not self.is_packed and path.suffix.lower() != ".jsonl"
        self.part = path.with_name(f"{path.name}.part")
        self._plan = path.with_name(f"{path.name}.plan.json")
        self.written_ids: set[str] = set()
        self._file: BinaryIO | None = None
        try:
            self._begin(orjson.dumps(plan, option=orjson.OPT_SORT_KEYS), resume=resume, force=force)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
        self._previous_ids = frozenset(self.written_ids)

    def write(self, record: Record) -> bool:
        """Write a run; return False if it is already written."""
        name = _build_file_name(record.trajectory.id)
        if name in self.written_ids:
            return False
        lines = b"".join(dumps(event) + b"\n" for event in build_events(record))
        try:
            self._write(name, lines)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written: {error.strerror}") from None
        self.written_ids.add(name)
        return True

    def finish(self) -> None:
        """Move the complete result to its final name."""
        self.close()
        if self.is_packed:
            packed = self.path.with_name(f"{self.path.name}.tmp")
            gzip_file(self.part, packed)
            os.replace(packed, self.path)
            self.part.unlink()
        else:
            os.replace(self.part, self.path)
        self._plan.unlink(missing_ok=True)

    def is_from_previous_run(self, record: Record) -> bool:
        """Return whether a run was already written before the interruption."""
        return _build_file_name(record.trajectory.id) in self._previous_ids

    def discard(self) -> None:
        """Remove the part and the plan."""
        self.close()
        _remove(self.part)
        self._plan.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the part; it stays on disk for another attempt."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, plan: bytes, *, resume: bool, force: bool) -> None:
        if self.path.exists() and not force:
            raise ConfigError(f"{self.path} exists (--force replaces it)")
        if self.part.exists() and not (resume or force):
            raise ConfigError(
                f"{self.part} is from an interrupted call (--resume continues, --force starts again)"
            )
        if resume and self.part.exists():
            self._resume(plan)
        else:
            _remove(self.part)
            _remove(self.path)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.is_folder:
                self.part.mkdir()
        self._plan.write_bytes(plan)
        if not self.is_folder:
            self._file = self.part.open("ab")

    def _resume(self, plan: bytes) -> None:
        if self._plan.exists() and self._plan.read_bytes() != plan:
            raise ConfigError(f"{self.part} was begun by another command (--force starts again)")
        if self.part.is_dir() is not self.is_folder:
            raise ConfigError(f"{self.part} was begun by another command (--force starts again)")
        if self.is_folder:
            self.written_ids = {file.stem for file in self.part.glob("*.jsonl")}
        else:
            self.written_ids = set(_read_complete_runs(self.part))

    def _write(self, name: str, lines: bytes) -> None:
        if self._file is not None:
            self._file.write(lines)
            self._file.flush()
            return
        torn = self.part / f"{name}.tmp"
        torn.write_bytes(lines)
        os.replace(torn, self.part / f"{name}.jsonl")


def gzip_file(source: Path, target: Path) -> None:
    """Compress a file with gzip; equal input gives equal bytes with the same zlib (no name, no time)."""
    with (
        source.open("rb") as source_file,
        target.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=raw, mtime=0) as packed,
    ):
        shutil.copyfileobj(source_file, packed)


def _read_complete_runs(log: Path) -> list[str]:
    """Return the file names of the complete runs in a log, and truncate the log after the last of them."""
    names: list[str] = []
    at = end = 0
    name = ""
    with log.open("r+b") as file:
        for line in file:
            at += len(line)
            if line.startswith(b'{"event":"header"') and line.endswith(b"\n"):
                name = _build_file_name(str(orjson.loads(line).get("id", "")))
            elif line == _END:
                names.append(name)
                end = at
        file.truncate(end)
    return names


def _build_file_name(name: str) -> str:
    """Return the run id if it is a valid file name on every system, else a hash of it."""
    return name if _SAFE.fullmatch(name) else hashlib.sha256(name.encode()).hexdigest()[:16]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
