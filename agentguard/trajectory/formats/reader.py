"""Reader of recorded runs in any format: files, folders, streams and objects; see docs/reading-runs.md."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from agentguard.errors import FormatError, InputError
from agentguard.trajectory.formats._content_description import describe_content
from agentguard.trajectory.formats._parquet_reader import iter_parquet_rows
from agentguard.trajectory.formats._stream_reader import SourceContent, detect_content
from agentguard.trajectory.formats.base import (
    BinaryFormat,
    DeepFormat,
    FolderFormat,
    Format,
    SequenceFormat,
    SourceItem,
    UnreadableRecord,
    formats,
    raise_unreadable,
)
from agentguard.trajectory.label_file import LABEL_SUFFIXES, read_labels
from agentguard.trajectory.model import Record, Trajectory
from agentguard.trajectory.safe_json import MAX_DEPTH, check_depth, normalize_json

ReadableSource = str | os.PathLike[str] | BinaryIO | TextIO | dict[str, Any] | list[Any]

FILE_SUFFIXES = (".json", ".jsonl", ".ndjson", ".traj", ".txt", ".json.gz", ".jsonl.gz", ".parquet")
_MAX_SAMPLED_ITEMS = 8
_FORMAT_HINT = "name its format with --format; docs/formats.md lists the formats"
_IGNORED_NAME_PATTERN = re.compile(r"\.|(?:licen[cs]e|readme|copying|notice)\b[^/]*\.txt$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _SourceLocation:
    """Location of values: the file, for messages, and the fallback id of runs."""

    file: str | None
    name: str


def read(source: ReadableSource, *, format: str | None = None) -> Iterator[Record | UnreadableRecord]:
    """Yield the runs of ``source``, and an `UnreadableRecord` for each record that cannot be read.

    Args:
        source: a path, a binary or text stream, or parsed JSON (a dict or a list). The function reads the
            files of a folder and its subfolders in natural order. The runs of a label file in YAML get its
            labels.
        format: name of the format; None detects it for each file.

    Raises:
        UnknownPlugin: there is no format with that name.
        FormatError: the source is missing, empty, or of no known format. A file of a folder with that problem
            is an UnreadableRecord instead.
    """
    requested_format = formats().get(format) if format is not None else None
    if isinstance(source, dict | list):
        return _read_parsed(source, requested_format)
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if path.suffix.lower() in LABEL_SUFFIXES:
            return _read_labelled_files(path, requested_format)
        return (
            _read_folder(path, requested_format)
            if path.is_dir()
            else _read_file(path, requested_format, name=path.stem)
        )
    name = getattr(source, "name", None)
    place = _SourceLocation(
        name if isinstance(name, str) else None, Path(name).stem if isinstance(name, str) else "stream"
    )
    return _read_stream(source, requested_format, place)


def load_records(source: ReadableSource, *, format: str | None = None) -> list[Record]:
    """Return all runs of ``source``. Raises the error of the first record that cannot be read."""
    return list(raise_unreadable(read(source, format=format)))


def load_trajectory(source: ReadableSource, *, format: str | None = None) -> Trajectory:
    """Return the only run of ``source``. Raises FormatError if there is not exactly one."""
    records = load_records(source, format=format)
    if len(records) != 1:
        raise FormatError(f"expected one run, found {len(records)}", hint="use load_records")
    return records[0].trajectory


def list_run_files(folder: Path) -> list[Path]:
    """Return the files of a folder and its subfolders that may contain runs, in natural order; skip links."""
    paths = []
    suffixes = (*FILE_SUFFIXES, *_list_binary_suffixes())
    for base, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        paths += [
            Path(base, name)
            for name in names
            if name.lower().endswith(suffixes) and not _IGNORED_NAME_PATTERN.match(name)
        ]
    return sorted(paths, key=lambda path: _build_natural_sort_key(path.relative_to(folder).as_posix()))


def _read_labelled_files(
    label_file: Path, requested_format: Format | None
) -> Iterator[Record | UnreadableRecord]:
    for path, annotation in read_labels(label_file).items():
        name = path.relative_to(label_file.parent).with_suffix("").as_posix()
        try:
            items = list(islice(_read_file(path, requested_format, name=name), 2))
            if len(items) != 1:
                raise FormatError("has several runs, and a label file labels one run of a file")
        except InputError as error:
            yield UnreadableRecord(error=error.with_location(file=str(path)))
            continue
        (item,) = items
        yield replace(item, annotation=annotation) if isinstance(item, Record) else item


def _build_natural_sort_key(name: str) -> list[tuple[bool, int, str]]:
    """Return a sort key with natural numbers: ``2.json`` before ``10.json``, numbers before letters."""
    parts = filter(None, re.split(r"([0-9]{1,18})", name))
    return [(False, int(part), "") if part.isdecimal() else (True, 0, part) for part in parts]


def _read_folder(folder: Path, requested_format: Format | None) -> Iterator[Record | UnreadableRecord]:
    for candidate in [requested_format] if requested_format else _load_formats():
        if isinstance(candidate, FolderFormat) and (records := candidate.parse_folder(folder)) is not None:
            yield from _iter_safely(records, _SourceLocation(str(folder), folder.name), None)
            return
    paths = list_run_files(folder)
    file_by_id: dict[str, str] = {}
    if not paths:
        raise FormatError(f"no files of runs ({', '.join(FILE_SUFFIXES)}) in the folder", file=str(folder))
    for path in paths:
        name = path.relative_to(folder).with_suffix("").as_posix()
        try:
            for item in _read_file(path, requested_format, name=name):
                yield separate_id(item, name, file_by_id) if isinstance(item, Record) else item
        except InputError as error:
            yield UnreadableRecord(error=error.with_location(file=str(path)))


def separate_id(record: Record, file: str, file_by_id: dict[str, str]) -> Record:
    """Add the file to the id of a run if a run of an earlier file has that id.

    Args:
        record: the run.
        file: name of its file.
        file_by_id: file of each earlier id; this function adds the id of the run.
    """
    run = record.trajectory
    if file_by_id.setdefault(run.id, file) == file:
        return record
    return replace(
        record, trajectory=replace(run, id=f"{file}:{run.id}"), original_id=record.original_id or run.id
    )


def _read_file(
    path: Path, requested_format: Format | None, *, name: str
) -> Iterator[Record | UnreadableRecord]:
    if (records := _read_binary_file(path, requested_format, name=name)) is not None:
        yield from _iter_safely(records, _SourceLocation(str(path), name), None)
        return
    if path.suffix.lower() == ".parquet":
        rows = SourceContent("sequence", iter_parquet_rows(path))
        yield from _read_content(rows, requested_format, _SourceLocation(str(path), name))
        return
    try:
        # A file with this suffix is decompressed record by record; other compressed files are rejected.
        open_file = gzip.open if path.suffix.lower() == ".gz" else open
        stream = cast(BinaryIO, open_file(path, "rb"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        raise FormatError(f"cannot be opened: {reason}", file=str(path)) from None
    with stream:
        yield from _read_stream(stream, requested_format, _SourceLocation(str(path), name))


def _read_binary_file(
    path: Path, requested_format: Format | None, *, name: str
) -> Iterator[Record | UnreadableRecord] | None:
    candidates = [requested_format] if requested_format else _load_formats()
    for candidate in candidates:
        if (
            isinstance(candidate, BinaryFormat)
            and path.name.lower().endswith(candidate.suffixes)
            and (records := candidate.parse_file(path, name=name)) is not None
        ):
            return records
    return None


def _list_binary_suffixes() -> set[str]:
    return {
        suffix for format in _load_formats() if isinstance(format, BinaryFormat) for suffix in format.suffixes
    }


def _read_stream(
    stream: BinaryIO | TextIO, requested_format: Format | None, location: _SourceLocation
) -> Iterator[Record | UnreadableRecord]:
    try:
        yield from _read_content(detect_content(stream), requested_format, location)
    except InputError as error:
        raise error.with_location(file=location.file) from None


def _read_parsed(
    value: dict[str, Any] | list[Any], requested_format: Format | None
) -> Iterator[Record | UnreadableRecord]:
    value = normalize_json(value)
    if isinstance(value, dict):
        content = SourceContent("document", iter([SourceItem(0, value)]))
    else:
        content = SourceContent("sequence", (SourceItem(i, item) for i, item in enumerate(value)))
    yield from _read_content(content, requested_format, _SourceLocation(None, "run"))


def _read_content(
    content: SourceContent, requested_format: Format | None, location: _SourceLocation
) -> Iterator[Record | UnreadableRecord]:
    sample = _take_sample(content.items)
    values = [item.value for item in sample if item.error is None]
    items = chain(sample, content.items)
    if content.kind != "sequence":
        if not values:
            yield from _to_unreadable(sample[0], location)
            return
        yield from _parse_item(
            requested_format or detect_format(values[0]), SourceItem(0, values[0]), location
        )
        return
    if not sample:
        raise FormatError("an empty list")
    if not values:
        # Without a readable value, the format is unknown; the errors of the items are more specific.
        for item in sample:
            yield from _to_unreadable(item, location)
        return
    format, is_whole = (
        (requested_format, _is_whole_record(requested_format, values))
        if requested_format
        else _detect_sequence_format(values)
    )
    yield from _read_sequence(format, items, whole=is_whole, location=location)


def _take_sample(items: Iterator[SourceItem]) -> list[SourceItem]:
    """Return the first items, and as many more as needed to get one that could be parsed."""
    sample = list(islice(items, _MAX_SAMPLED_ITEMS))
    has_value = any(item.error is None for item in sample)
    while not has_value and (item := next(items, None)) is not None:
        sample.append(item)
        has_value = item.error is None
    return sample


def _read_sequence(
    format: Format, items: Iterator[SourceItem], *, whole: bool, location: _SourceLocation
) -> Iterator[Record | UnreadableRecord]:
    if isinstance(format, SequenceFormat):
        yield from _iter_safely(format.parse_sequence(items, name=location.name), location, None)
    elif whole:
        values = []
        for item in items:
            values += [item.value] if item.error is None else []
            yield from _to_unreadable(item, location)
        yield from _parse_item(format, SourceItem(0, values), location)
    else:
        for item in items:
            inside = _SourceLocation(location.file, f"{location.name}#{item.position}")
            yield from _to_unreadable(item, location) if item.error else _parse_item(format, item, inside)


def _to_unreadable(item: SourceItem, location: _SourceLocation) -> Iterator[UnreadableRecord]:
    if item.error is not None:
        yield UnreadableRecord(error=item.error.with_location(file=location.file, record=item.position))


def _parse_item(
    format: Format, item: SourceItem, location: _SourceLocation
) -> Iterator[Record | UnreadableRecord]:
    return _iter_safely(_parse_value(format, item.value, location.name), location, item.position)


def _parse_value(format: Format, value: Any, name: str) -> Iterator[Record | UnreadableRecord]:
    check_depth(value, format.max_depth if isinstance(format, DeepFormat) else MAX_DEPTH)
    yield from format.parse(value, name=name)


def _iter_safely(
    records: Iterator[Record | UnreadableRecord], location: _SourceLocation, position: int | None
) -> Iterator[Record | UnreadableRecord]:
    """Convert errors of an importer into UnreadableRecords; a plug-in may raise any error."""
    try:
        for one in records:
            yield (
                UnreadableRecord(error=one.error.with_location(file=location.file))
                if isinstance(one, UnreadableRecord)
                else replace(one, file=one.file or location.file)
            )
    except InputError as error:
        yield UnreadableRecord(error=error.with_location(file=location.file, record=position))
    except Exception as error:
        reason = f"the importer failed with {type(error).__name__}"
        yield UnreadableRecord(error=FormatError(reason, file=location.file, record=position))


def detect_format(value: Any) -> Format:
    """Detect the format of one parsed record (or text). Raises FormatError if none or several match."""
    return _select_best([(format.score_match(value), format) for format in _load_formats()], value)


def _detect_sequence_format(values: list[Any]) -> tuple[Format, bool]:
    """Return the format of a sequence, and True if the sequence as a whole is one record."""
    scores = [
        (max(format.score_match(values), _score_best_item(format, values)), format)
        for format in _load_formats()
    ]
    best = _select_best(scores, values)
    return best, _is_whole_record(best, values)


def _is_whole_record(format: Format, values: list[Any]) -> bool:
    return format.score_match(values) > _score_best_item(format, values)


def _score_best_item(format: Format, values: list[Any]) -> float:
    return max(format.score_match(value) for value in values)


def _select_best(scores: list[tuple[float, Format]], value: Any) -> Format:
    top = max((score for score, _ in scores), default=0.0)
    if top <= 0:
        kind, hint = describe_content(value)
        raise FormatError(f"unknown format: {kind}", hint=hint or _FORMAT_HINT)
    best, *rivals = [format for score, format in scores if score == top]
    if rivals:
        names = ", ".join(format.name for format in (best, *rivals))
        raise FormatError(f"several formats match: {names}", hint=_FORMAT_HINT)
    return best


def _load_formats() -> list[Format]:
    loaded = []
    for name in formats():
        try:
            loaded.append(formats().get(name))
        except ImportError:  # A format plug-in with a missing dependency must not disable the others.
            continue
    return loaded
