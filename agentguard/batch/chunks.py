"""Input of a batch job: files on any file system, cut into chunks of rows.

A chunk is the unit of work and of resumption. Its digest covers its contents, so a job processes a
changed chunk again, and skips an equal one.

- Parquet and JSON Lines files with one run per row are cut into chunks of rows. The driver holds only the
  chunks in flight.
- A file whose runs span rows (a log of events or spans) and a file of any other format is one chunk. The
  worker reads it.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import IO, Any, cast

import orjson

from agentguard._lazy import import_extra
from agentguard.errors import ConfigError, InputError
from agentguard.trajectory.formats.base import BinaryFormat, SequenceFormat, formats
from agentguard.trajectory.formats.reader import FILE_SUFFIXES, detect_format
from agentguard.trajectory.safe_json import loads

Row = bytes | dict[str, Any]

_LINE_SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".jsonl.zst", ".ndjson.zst")
_PARQUET_SUFFIX = ".parquet"
_SUFFIXES = tuple(dict.fromkeys((*FILE_SUFFIXES, *_LINE_SUFFIXES, _PARQUET_SUFFIX, ".eval")))
_SAMPLE_ROWS = 8
_HASH_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """Input file.

    Attributes:
        url: path or URL of the file, as workers open it.
        name: path relative to the root of the input pattern; part of the identity of its rows.
        partition: directories of the form ``key=value`` in the path, such as ``"day=2026-11-01"``.
        size: bytes; 0 if the file system does not report it.
        version: text that changes with the contents of the file.
    """

    url: str
    name: str
    partition: str = ""
    size: int = 0
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Chunk of an input file.

    Attributes:
        file: the file.
        index: position of the chunk in the file.
        rows: lines of JSON or rows of Parquet; None for the complete file.
        records: position of each row in the file.
        digest: hash of the contents in hexadecimal digits.
        format: format of the rows; None detects the format of each row.
        likely_format: format of the first row, for the error of a row whose format is not detected.
        id_column: field of a row with the id of its run; None uses the id in the run.
        document_column: field of a row with the run as JSON text; None if the row is the run.
    """

    file: InputFile
    index: int = 0
    rows: tuple[Row, ...] | None = None
    records: tuple[int, ...] = ()
    digest: str = ""
    format: str | None = None
    likely_format: str | None = None
    id_column: str | None = None
    document_column: str | None = None

    def select(self, place: int) -> Chunk:
        """Return a chunk with one row of this chunk."""
        assert self.rows is not None
        return replace(self, rows=(self.rows[place],), records=(self.records[place],))


@dataclass(frozen=True, slots=True, kw_only=True)
class InputOptions:
    """Selection of the input.

    Attributes:
        format: format of the runs; None detects the format of each file.
        id_column: field of a row with the id of its run.
        document_column: field of a row with the run as JSON text; None if the row is the run.
        partitions: directories that a file must be in, such as ``("day=2026-11-01",)``.
        rows_per_chunk: rows of a chunk.
        sample: share of the rows to process, in (0, 1]; the same rows at every run.
        limit: largest number of rows; None has no limit.
    """

    format: str | None = None
    id_column: str | None = None
    document_column: str | None = None
    partitions: tuple[str, ...] = ()
    rows_per_chunk: int = 64
    sample: float = 1.0
    limit: int | None = None


@dataclass(slots=True)
class InputPosition:
    """Position of a job in its input.

    Attributes:
        total_bytes: size of all files.
        finished_bytes: size of the files that are read.
        file_bytes: bytes of the current file that are read.
        share: share of the input that is read, from 0 to 1.
    """

    total_bytes: int
    finished_bytes: int = 0
    file_bytes: float = 0.0
    share: float = 0.0

    def update(self, limit_share: float) -> None:
        """Update the share; ``limit_share`` is the share of the largest number of rows."""
        bytes_read = self.finished_bytes + self.file_bytes
        self.share = min(1.0, max(bytes_read / max(self.total_bytes, 1), limit_share))


def list_input_files(patterns: Iterable[str], options: InputOptions) -> list[InputFile]:
    """Return the files of paths, folders, globs and URLs, in order of their names.

    Raises:
        ConfigError: a pattern matches no file, or a package for its file system is missing.
    """
    found: dict[str, InputFile] = {}
    for pattern in patterns:
        for file in _list_files(pattern):
            if all(partition in file.partition.split("/") for partition in options.partitions):
                found.setdefault(file.url, file)
    if not found:
        raise ConfigError("no input file is in the given partitions")
    return sorted(found.values(), key=lambda file: file.url)


def iter_chunks(
    files: Sequence[InputFile], options: InputOptions, position: InputPosition | None = None
) -> Iterator[Chunk]:
    """Yield the chunks of files; stop after ``options.limit`` rows.

    A file that cannot be read yields one chunk of the complete file: the worker reports the error.

    Args:
        files: the files.
        options: selection of the rows.
        position: position to update before each chunk.
    """
    position = position or InputPosition(0)
    position.total_bytes = sum(file.size for file in files)
    remaining = options.limit
    for file in files:
        for chunk in _iter_file_chunks(file, options, position):
            selected = _sample_rows(chunk, options.sample)
            if remaining is not None and selected.rows is not None:
                selected = replace(
                    selected, rows=selected.rows[:remaining], records=selected.records[:remaining]
                )
            position.update(1 - remaining / options.limit if remaining is not None and options.limit else 0.0)
            if selected.rows is None or selected.rows:
                yield replace(selected, digest=_compute_digest(selected))
            if remaining is not None:
                remaining -= len(selected.rows) if selected.rows is not None else 1
                if remaining <= 0:
                    return
        position.finished_bytes, position.file_bytes = position.finished_bytes + file.size, 0.0


def extract_document(row: Any, column: str | None) -> Any:
    """Return the run of a row: the row itself, or the JSON text in a column of it.

    Raises:
        InputError: the column is missing or null, or is not JSON.
    """
    if column is None:
        return row
    text = row.get(column) if isinstance(row, dict) else None
    if text is None:
        raise InputError("the row has no run in this field", field=column)
    return loads(text) if isinstance(text, str | bytes) else text


def open_file(url: str, mode: str = "rb", *, compression: str | None = "infer") -> IO[bytes]:
    """Open a file on any file system."""
    return cast(IO[bytes], _fsspec().open(url, mode, compression=compression).open())


def resolve_file_system(url: str) -> tuple[Any, str]:
    """Return ``(file system, path)`` of a URL. Raises ConfigError if its package is not installed."""
    try:
        return cast(tuple[Any, str], _fsspec().core.url_to_fs(url))
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{url}: {error}") from None


def _fsspec() -> Any:
    return import_extra("fsspec", "batch")


def _list_files(pattern: str) -> list[InputFile]:
    system, path = resolve_file_system(pattern)
    try:
        if any(sign in path for sign in "*?["):
            names, root = system.glob(path), _find_glob_root(path)
        elif system.isdir(path):
            names, root = system.find(path), path
        else:
            names, root = ([path] if system.exists(path) else []), path.rpartition("/")[0]
        files = [
            _build_input_file(system, name, root) for name in names if str(name).lower().endswith(_SUFFIXES)
        ]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{pattern}: cannot be listed: {error}") from None
    if not files:
        raise ConfigError(f"{pattern}: no file of runs ({', '.join(_SUFFIXES)})")
    return files


def _build_input_file(system: Any, name: str, root: str) -> InputFile:
    info = system.info(name)
    relative = name.removeprefix(root).lstrip("/")
    return InputFile(
        url=system.unstrip_protocol(name),
        name=relative or name.rpartition("/")[2],
        partition="/".join(part for part in name.split("/")[:-1] if "=" in part),
        size=int(info.get("size") or 0),
        version=str(info.get("ETag") or info.get("etag") or f"{info.get('mtime')}-{info.get('size')}"),
    )


def _find_glob_root(path: str) -> str:
    literal = path[: min(path.find(sign) for sign in "*?[" if sign in path)]
    return literal.rpartition("/")[0]


def _iter_file_chunks(file: InputFile, options: InputOptions, position: InputPosition) -> Iterator[Chunk]:
    whole = Chunk(file=file, format=options.format)
    name = file.name.lower()
    try:
        if name.endswith(_PARQUET_SUFFIX) and not _has_binary_reader(options.format):
            yield from _cut(_iter_parquet_rows(file, position), whole, options)
        elif name.endswith(_LINE_SUFFIXES):
            rows = _iter_lines(file.url, position)
            sample = list(islice(rows, _SAMPLE_ROWS))
            likely_format, has_run_per_row = _detect_row_format(sample, options)
            if has_run_per_row:
                yield from _cut(chain(sample, rows), replace(whole, likely_format=likely_format), options)
            else:
                yield whole
        else:
            yield whole
    except (OSError, EOFError, ValueError):
        yield whole


def _has_binary_reader(format: str | None) -> bool:
    return format is not None and isinstance(formats().get(format), BinaryFormat)


def _cut(rows: Iterator[Row], whole: Chunk, options: InputOptions) -> Iterator[Chunk]:
    begin = index = 0
    while batch := tuple(islice(rows, options.rows_per_chunk)):
        yield replace(
            whole,
            index=index,
            rows=batch,
            records=tuple(range(begin, begin + len(batch))),
            id_column=options.id_column,
            document_column=options.document_column,
        )
        begin, index = begin + len(batch), index + 1


def _iter_lines(url: str, position: InputPosition) -> Iterator[Row]:
    with open_file(url, compression=None) as raw:
        compression = _fsspec().core.get_compression(url, "infer")
        stream = _fsspec().compression.compr[compression](raw, mode="rb")
        with io.BufferedReader(cast(io.RawIOBase, stream)) as lines:
            for line in lines:
                position.file_bytes = raw.tell()
                if line.strip():
                    yield line


def _iter_parquet_rows(file: InputFile, position: InputPosition) -> Iterator[Row]:
    parquet = import_extra("pyarrow.parquet", "batch")
    with open_file(file.url, compression=None) as stream:
        table = parquet.ParquetFile(stream)
        for batch in table.iter_batches(batch_size=256):
            position.file_bytes += file.size * batch.num_rows / table.metadata.num_rows
            yield from batch.to_pylist()


def _detect_row_format(sample: list[Row], options: InputOptions) -> tuple[str | None, bool]:
    """Return the format of a file of JSON Lines, and True if each row is a run.

    A sample without a readable value counts as rows.
    """
    values = []
    for row in sample:
        try:
            values.append(orjson.loads(row) if isinstance(row, bytes) else row)
        except ValueError:
            continue
    if not values or options.document_column:
        return None, True
    try:
        format = formats().get(options.format) if options.format else detect_format(values[0])
    except InputError:
        return None, False
    whole, single = format.score_match(values), max(format.score_match(value) for value in values)
    return format.name, not isinstance(format, SequenceFormat) and single >= whole


def _sample_rows(chunk: Chunk, share: float) -> Chunk:
    if share >= 1 or chunk.rows is None:
        return chunk
    chosen = [
        place for place, record in enumerate(chunk.records) if _draw(f"{chunk.file.name}\0{record}") < share
    ]
    return replace(
        chunk,
        rows=tuple(chunk.rows[place] for place in chosen),
        records=tuple(chunk.records[place] for place in chosen),
    )


def _draw(key: str) -> float:
    """Return a number in [0, 1) that depends only on the key."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:6], "big") / 2**48


def _compute_digest(chunk: Chunk) -> str:
    reading = (chunk.format, chunk.id_column, chunk.document_column, chunk.records)
    digest = hashlib.sha256("".join(f"{part}\0" for part in reading).encode())
    if chunk.rows is None:
        digest.update(chunk.file.version.encode())
    for row in chunk.rows or ():
        data = row if isinstance(row, bytes) else orjson.dumps(row, default=str, option=orjson.OPT_SORT_KEYS)
        digest.update(len(data).to_bytes(_HASH_BYTES, "big") + data)
    return digest.hexdigest()[: 2 * _HASH_BYTES]
