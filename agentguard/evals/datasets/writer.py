"""Where injected runs go: an event log, a packed one, or a folder with a log for each run.

What is being written has the suffix ``.part``; a file under its own name is whole. After an interruption the
same command goes on: the runs that are already whole are kept, a torn one at the end is cut off. The plan
beside the part holds what the command was, so that two commands never mix in one file.
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
from agentguard.trajectory._safe_json import dumps
from agentguard.trajectory.event_log.events import build_events
from agentguard.trajectory.model import Record

_END = b'{"event":"end"}\n'
_LEVEL = 9
_SAFE = re.compile(r"[\w-]{4,80}", re.ASCII)


class DatasetWriter:
    """Takes runs one by one; `finish` makes the result whole.

    Args:
        path: ``*.jsonl``, ``*.jsonl.gz``, or anything else for a folder.
        plan: what the command is asked to do; stored while it is at work.
        resume: go on with what an interruption left.
        force: replace what is there.

    Raises:
        ConfigError: something is there already, it cannot be written, or it was begun by another command.
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
        """Write a run; False if it is already there."""
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
        """Make the result whole under its own name."""
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
        """Whether a run was already written before the interruption."""
        return _build_file_name(record.trajectory.id) in self._previous_ids

    def discard(self) -> None:
        """Leave nothing behind."""
        self.close()
        _remove(self.part)
        self._plan.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the part; it stays for another try."""
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
            raise ConfigError(f"{self.path} is already there (--force replaces it)")
        if self.part.exists() and not (resume or force):
            raise ConfigError(
                f"{self.part} is left of an interruption (--resume goes on, --force starts anew)"
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
            raise ConfigError(f"{self.part} was begun by another command (--force starts anew)")
        if self.part.is_dir() is not self.is_folder:
            raise ConfigError(f"{self.part} was begun by another command (--force starts anew)")
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
    """Gzip a file; the same input gives the same bytes with the same zlib (no name, no time in it)."""
    with (
        source.open("rb") as plain,
        target.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=raw, mtime=0) as packed,
    ):
        shutil.copyfileobj(plain, packed)


def _read_complete_runs(log: Path) -> list[str]:
    """Names of the runs of a log that are whole; what follows the last of them is cut off."""
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
    """A run's id where it can be a file's name everywhere, else a hash of it."""
    return name if _SAFE.fullmatch(name) else hashlib.sha256(name.encode()).hexdigest()[:16]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
