"""Worker side of a batch job: read the rows of a chunk and diagnose them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentguard.batch.chunks import Chunk, Row, resolve_file_system
from agentguard.batch.verdict_table import build_error_row, build_verdict_row
from agentguard.config.policy import Policy
from agentguard.errors import AgentGuardError, InputError
from agentguard.guard import Guard
from agentguard.localize.run_comparison import RunComparator, compute_signals, is_comparable
from agentguard.trajectory._safe_json import loads
from agentguard.trajectory.costs import price_run
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import read
from agentguard.trajectory.model import Record

_MIN_DETECTOR_DEADLINE_S = 60.0
"""A detector's deadline must not depend on the load of the machine: results are equal at any parallelism."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Input row without a verdict.

    Attributes:
        source: file of the row, as in the output table.
        record: position of the row in the file.
        error: reason, with the field and the way out if they are known.
        data: the row as text; empty for a row that is part of a complete file.
    """

    source: str
    record: int
    error: str
    data: str = ""


@dataclass(slots=True, kw_only=True)
class ChunkResult:
    """Result of a chunk.

    Attributes:
        rows: rows of the output table, in the order of the input.
        dead_letters: rows without a verdict.
        is_retryable: True if a row failed for a reason that may be gone at the next run, such as a judge that
            does not answer.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    is_retryable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorConfig:
    """Configuration of the workers; JSON data and text, so that any engine can send it.

    Attributes:
        policy: policy of the diagnosis as JSON text.
        fingerprint: identity of all that changes results.
    """

    policy: str
    fingerprint: str


class ChunkProcessor:
    """Processor of chunks with one guard; a worker has one."""

    def __init__(self, config: ProcessorConfig) -> None:
        policy = Policy.model_validate_json(config.policy)
        deadline = max(policy.detector_deadline_s, _MIN_DETECTOR_DEADLINE_S)
        self._guard = Guard.from_policy(policy.model_copy(update={"detector_deadline_s": deadline}))
        self._comparator = RunComparator.from_localizer(self._guard.localizer)
        self._prices = policy.prices
        self._fingerprint = config.fingerprint

    def process(self, chunk: Chunk) -> ChunkResult:
        """Diagnose the runs of a chunk; never raises for bad input."""
        result = ChunkResult()
        if chunk.rows is None:
            self._process_file(chunk, result)
        else:
            for record, row in zip(chunk.records, chunk.rows, strict=True):
                self._process_row(chunk, record, row, result)
        return result

    @property
    def comparator(self) -> RunComparator | None:
        """Comparator of the runs of an agent; None if the localizer compares no runs."""
        return self._comparator

    def close(self) -> None:
        """Close the judges of the guard."""
        self._guard.close()

    def _process_row(self, chunk: Chunk, record: int, row: Row, result: ChunkResult) -> None:
        source = chunk.file.name
        try:
            value = loads(row) if isinstance(row, bytes) else row
            items = _read_row(value, chunk)
        except InputError as error:
            self._add_failure(source, record, str(error), row, result)
            return
        if not items:
            self._add_failure(source, record, "the row has no run", row, result)
        for item in items:
            if isinstance(item, UnreadableRecord):
                self._add_failure(source, record, str(item.error), row, result)
                continue
            id = value.get(chunk.id_column) if chunk.id_column and isinstance(value, dict) else None
            self._diagnose(
                item, source, record, id if id is not None else _build_run_id(item, chunk, record), result
            )

    def _process_file(self, chunk: Chunk, result: ChunkResult) -> None:
        source = chunk.file.name
        try:
            with _LocalCopy(chunk.file.url) as path:
                for record, item in enumerate(read(path, format=chunk.format)):
                    if isinstance(item, UnreadableRecord):
                        self._add_failure(source, record, item.error.reason, b"", result)
                    else:
                        self._diagnose(item, source, record, item.trajectory.id, result)
        except (AgentGuardError, OSError) as error:
            reason = error.reason if isinstance(error, InputError) else str(error)
            self._add_failure(source, 0, reason, b"", result)
            result.is_retryable |= isinstance(error, OSError)

    def _diagnose(self, item: Record, source: str, record: int, id: Any, result: ChunkResult) -> None:
        run = price_run(replace(item.trajectory, id=str(id)), self._prices)
        diagnosis = self._guard.diagnose(run)
        result.is_retryable |= bool(diagnosis.failures)
        has_signals = self._comparator is not None and is_comparable(run, diagnosis)
        signals = compute_signals(run, diagnosis.findings).tolist() if has_signals else ()
        result.rows.append(build_verdict_row(source, record, run, diagnosis, self._fingerprint, signals))

    def _add_failure(self, source: str, record: int, error: str, row: Row, result: ChunkResult) -> None:
        data = row.decode(errors="replace") if isinstance(row, bytes) else repr(row)
        result.rows.append(build_error_row(source, record, error, self._fingerprint))
        result.dead_letters.append(DeadLetter(source=source, record=record, error=error, data=data))


def _read_row(value: Any, chunk: Chunk) -> list[Record | UnreadableRecord]:
    try:
        return list(read(value, format=chunk.format))
    except InputError:
        if chunk.format is not None or chunk.likely_format is None:
            raise
        # The format of the other rows names the field that is wrong; detection has no such error.
        return list(read(value, format=chunk.likely_format))


def _build_run_id(item: Record, chunk: Chunk, record: int) -> str:
    """Return the id in the run; a run without an id gets the position of its row."""
    id = item.trajectory.id
    return f"{chunk.file.name}#{record}" if id in ("", "run", "run#0") else id


class _LocalCopy:
    """Context manager with a local path of a file; a remote file is downloaded."""

    def __init__(self, url: str) -> None:
        self._system, self._path = resolve_file_system(url)
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Path:
        if self._system.protocol in ("file", ("file", "local")):
            return Path(self._path)
        self._folder = tempfile.TemporaryDirectory(prefix="agentguard-batch-")
        path = Path(self._folder.name, os.path.basename(self._path))
        self._system.get_file(self._path, str(path))
        return path

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()


def iter_failures(chunk: Chunk, error: str, fingerprint: str) -> Iterator[tuple[dict[str, Any], DeadLetter]]:
    """Yield ``(output row, dead letter)`` for each row of a chunk that no worker could process."""
    for place, record in enumerate(chunk.records or (0,)):
        row = chunk.rows[place] if chunk.rows is not None else b""
        data = row.decode(errors="replace") if isinstance(row, bytes) else repr(row)
        yield (
            build_error_row(chunk.file.name, record, error, fingerprint),
            DeadLetter(source=chunk.file.name, record=record, error=error, data=data),
        )
