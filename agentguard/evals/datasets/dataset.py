"""Annotated runs for an evaluation, read from files: records, unreadable items and a checksum."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agentguard.errors import EvaluationError, InputError
from agentguard.evals.scoring import Case
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.grouping import normalize_group_key
from agentguard.trajectory.label_file import LABEL_SUFFIXES, read_labels
from agentguard.trajectory.model import GOLD_ANSWER, Record

_PARTS_BY_FOLDER = frozenset({"who_and_when"})  # published as folders that are reported separately
_BLOCK = 1 << 20
AUTO_FORMAT = "auto"
"""Format name that recognises the format of each path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Annotated runs under one name.

    Attributes:
        name: name of the format, or of the data set.
        records: the records.
        parts: the part (subset) of the data set for each record; empty if unknown.
        broken: unreadable items with their location; they are counted and reported, never scored.
        checksum: SHA-256, in hex, over names and bytes of the files; empty if there are no files.
    """

    name: str
    records: tuple[Record, ...]
    parts: tuple[str, ...] = ()
    broken: tuple[InputError, ...] = ()
    checksum: str = ""

    def build_cases(self) -> tuple[Case, ...]:
        """Return the annotation of each record, under a key that is unique in this data set."""
        key_counts: dict[str, int] = {}
        has_parts = len(set(self.parts)) > 1
        cases = []
        for index, record in enumerate(self.records):
            part = self.parts[index] if self.parts else ""
            key = f"{part}/{record.trajectory.id}" if has_parts else record.trajectory.id
            key_counts[key] = key_counts.get(key, 0) + 1
            unique = key if key_counts[key] == 1 else f"{key}#{key_counts[key]}"
            cases.append(_build_case(record, run=unique, part=part))
        return tuple(cases)

    def take(self, limit: int | None) -> Dataset:
        """Return the data set with the first ``limit`` records, or all records if ``limit`` is None."""
        if limit is None:
            return self
        return replace(self, records=self.records[:limit], parts=self.parts[:limit])


def to_dataset(records: Dataset | Sequence[Record]) -> Dataset:
    """Return a data set unchanged; wrap plain records in a data set named after their format."""
    if isinstance(records, Dataset):
        return records
    plain_records = tuple(records)
    names = sorted({record.trajectory.format for record in plain_records})
    return Dataset(name="+".join(names), records=plain_records)


def load_dataset(format: str, paths: Sequence[Path]) -> Dataset:
    """Read the annotated runs of a format.

    Args:
        format: name of the importer, which is also the name of the data set; ``auto`` recognises it.
        paths: files or folders; a folder that holds several parts of Who&When is read part by part.

    Raises:
        EvaluationError: a path does not exist, or no record could be read.
        UnknownPlugin: the format is unknown.
    """
    from agentguard.trajectory.formats.reader import read

    records: list[Record] = []
    parts: list[str] = []
    broken: list[InputError] = []
    for part, path in _find_parts(format, paths):
        for item in read(path, format=None if format == AUTO_FORMAT else format):
            if isinstance(item, UnreadableRecord):
                broken.append(item.error)
                continue
            records.append(item)
            parts.append(part)
    if not records:
        first = f"; the first: {broken[0]}" if broken else ""
        kind = "" if format == AUTO_FORMAT else f"{format} "
        raise EvaluationError(f"no {kind}record could be read; {len(broken)} are broken{first}")
    return Dataset(
        name=format,
        records=tuple(records),
        parts=tuple(parts),
        broken=tuple(broken),
        checksum=compute_checksum(paths),
    )


def compute_checksum(paths: Sequence[Path]) -> str:
    """Return the SHA-256, in hex, over name, length and bytes of the files below ``paths``, in name order."""
    digest = hashlib.sha256()
    for path in paths:
        for file in (*_list_files(path), *_list_labelled_files(path)):
            name = file.relative_to(path).as_posix() if path.is_dir() else file.name
            digest.update(f"{name}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as stream:
                while block := stream.read(_BLOCK):
                    digest.update(block)
    return digest.hexdigest()


def _list_labelled_files(path: Path) -> list[Path]:
    return sorted(read_labels(path)) if path.suffix.lower() in LABEL_SUFFIXES else []


def add_gold_answer(record: Record) -> Record:
    """Return the record with the gold answer in the run's ``extra``, for the ``with_answer`` setting."""
    answer = record.annotation.answer
    if answer is None:
        return record
    extra = {**record.trajectory.extra, GOLD_ANSWER: answer}
    return replace(record, trajectory=replace(record.trajectory, extra=extra))


def _find_parts(format: str, paths: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    for path in paths:
        if not path.exists():
            raise EvaluationError(f"there is no file or folder {path}")
        folders = _find_folders(path) if format in _PARTS_BY_FOLDER else []
        if folders:
            yield from ((folder.name, folder) for folder in folders)
        else:
            yield (path.name if path.is_dir() else path.stem), path


def _find_folders(path: Path) -> list[Path]:
    """Return the folders below ``path`` that directly contain JSON files, unless ``path`` does."""
    if not path.is_dir() or any(path.glob("*.json")):
        return []
    return sorted({file.parent for file in path.rglob("*.json")})


def _list_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))


def _build_case(record: Record, *, run: str, part: str) -> Case:
    cause = record.annotation.root_cause
    return Case(
        run=run,
        part=part,
        length=len(record.trajectory.steps),
        step=cause.step if cause else None,
        agent=cause.agent if cause else None,
        module=cause.module if cause else None,
        codes=cause.codes if cause else (),
        failed=record.annotation.failed,
        id=record.trajectory.id,
        group=_hash_group(record),
    )


def _hash_group(record: Record) -> str:
    """Return a hash of the question's key, or an empty string if there is no key, as in `list_groups`."""
    key = normalize_group_key(record.annotation.group or "")
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:16] if key else ""
