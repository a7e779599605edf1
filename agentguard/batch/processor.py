"""Worker side of a batch job: read the rows of a chunk and apply the operation to their runs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentguard.batch.chunks import Chunk, Row, extract_document, resolve_file_system
from agentguard.batch.operation import Operation
from agentguard.errors import AgentGuardError, InputError, JudgeError
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import read
from agentguard.trajectory.model import Record
from agentguard.trajectory.safe_json import loads


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Input row without a result.

    Attributes:
        source: file of the row, as in the output table.
        record: position of the row in the file.
        error: reason, with the field and the remedy if they are known.
        data: the row as text; empty for a row that is part of a complete file, and if the operation redacts.
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
        dead_letters: rows without a result.
        is_retryable: True if a row failed for a reason that may be gone at the next run, such as a judge that
            does not answer.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    is_retryable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorConfig:
    """Configuration of the workers.

    Attributes:
        operation: operation on the runs.
        fingerprint: identity of all that changes results.
    """

    operation: Operation
    fingerprint: str


class ChunkProcessor:
    """Processor of chunks; a worker has one."""

    def __init__(self, config: ProcessorConfig) -> None:
        self._config = config
        self._run_processor = config.operation.build_processor()

    def process(self, chunk: Chunk) -> ChunkResult:
        """Return the rows for the runs of a chunk; never raise for bad input."""
        result = ChunkResult()
        if chunk.rows is None:
            self._process_file(chunk, result)
        else:
            for record, row in zip(chunk.records, chunk.rows, strict=True):
                self._process_row(chunk, record, row, result)
        return result

    def close(self) -> None:
        """Release connections and models."""
        self._run_processor.close()

    def _process_row(self, chunk: Chunk, record: int, row: Row, result: ChunkResult) -> None:
        source = chunk.file.name
        try:
            value = loads(row) if isinstance(row, bytes) else row
            items = _read_row(extract_document(value, chunk.document_column), chunk)
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
            run_id = str(id) if id is not None else _build_run_id(item, chunk, record)
            self._process_run(item, source, record, run_id, row, result)

    def _process_file(self, chunk: Chunk, result: ChunkResult) -> None:
        source = chunk.file.name
        try:
            with _LocalCopy(chunk.file.url) as path:
                for record, item in enumerate(read(path, format=chunk.format)):
                    if isinstance(item, UnreadableRecord):
                        self._add_failure(source, record, item.error.reason, b"", result)
                    else:
                        self._process_run(item, source, record, item.trajectory.id, b"", result)
        except (AgentGuardError, OSError) as error:
            reason = error.reason if isinstance(error, InputError) else str(error)
            self._add_failure(source, 0, reason, b"", result)
            result.is_retryable |= isinstance(error, OSError)

    def _process_run(
        self, item: Record, source: str, record: int, run_id: str, row: Row, result: ChunkResult
    ) -> None:
        run = replace(item.trajectory, id=run_id)
        try:
            output = self._run_processor.process(replace(item, trajectory=run))
        except AgentGuardError as error:
            self._add_failure(source, record, str(error), row, result)
            result.is_retryable |= isinstance(error, JudgeError)
            return
        result.is_retryable |= output.is_retryable
        table, fingerprint = self._config.operation.table, self._config.fingerprint
        result.rows.append(table.build_row(source, record, fingerprint, run, output.values))

    def _add_failure(self, source: str, record: int, error: str, row: Row, result: ChunkResult) -> None:
        output_row, letter = _build_failure(source, record, error, row, self._config)
        result.rows.append(output_row)
        result.dead_letters.append(letter)


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


def iter_failures(
    chunk: Chunk, error: str, config: ProcessorConfig
) -> Iterator[tuple[dict[str, Any], DeadLetter]]:
    """Yield ``(output row, dead letter)`` for each row of a chunk that no worker could process."""
    for place, record in enumerate(chunk.records or (0,)):
        row = chunk.rows[place] if chunk.rows is not None else b""
        yield _build_failure(chunk.file.name, record, error, row, config)


def _build_failure(
    source: str, record: int, error: str, row: Row, config: ProcessorConfig
) -> tuple[dict[str, Any], DeadLetter]:
    data = ""
    if config.operation.has_input_in_dead_letters:
        data = row.decode(errors="replace") if isinstance(row, bytes) else repr(row)
    return (
        config.operation.table.build_error_row(source, record, config.fingerprint, error),
        DeadLetter(source=source, record=record, error=error, data=data),
    )
