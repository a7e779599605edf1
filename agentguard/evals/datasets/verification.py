"""Verification of a copy of a data set against its manifest: checksums, records, counts and labels."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from agentguard.errors import EvaluationError, InputError
from agentguard.evals.datasets.manifest import DatasetFile, DatasetManifest, describe_source, resolve_path
from agentguard.quantity import format_quantity
from agentguard.trajectory.formats.base import FolderFormat, UnreadableRecord, formats
from agentguard.trajectory.formats.reader import list_run_files, read
from agentguard.trajectory.model import Record

_BLOCK = 1 << 20
VerificationProgress = Callable[[str, int], None]
"""Callback that receives the current activity and the number of records read so far."""


class FileStatus(StrEnum):
    """Result of comparing a file with its manifest."""

    OK = "ok"
    CHANGED = "changed"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCheck:
    """Actual state of a file; ``unpacked_sha256`` is set only for compressed files.

    The status is ``unknown`` if the manifest has no checksum.
    """

    path: str
    status: FileStatus
    sha256: str = ""
    size: int = 0
    unpacked_sha256: str = ""


@dataclass(slots=True, kw_only=True)
class VerificationReport:
    """Contents and problems of a copy.

    Attributes:
        files: every file, including missing ones.
        records: number of readable runs; ``failed`` and ``passed`` count those with that label.
        labels: number of runs with each label of the manifest.
        codes: number of runs by the first code of the root cause.
        broken: unreadable records, with file and location.
        problems: differences between the copy and the manifest.
    """

    name: str
    files: list[FileCheck] = field(default_factory=list)
    records: int = 0
    failed: int = 0
    passed: int = 0
    labels: dict[str, int] = field(default_factory=dict)
    codes: Counter[str] = field(default_factory=Counter)
    broken: list[InputError] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def is_valid(self) -> bool:
        """Return whether the copy has no problems."""
        return not self.broken and not self.problems


def verify_dataset(
    manifest: DatasetManifest, path: Path | None = None, *, progress: VerificationProgress | None = None
) -> VerificationReport:
    """Check a copy of a data set.

    Args:
        manifest: the expected content.
        path: the folder or file of the copy; defaults to the manifest's folder for a redistributed data set.
        progress: called with the current activity.

    Raises:
        EvaluationError: the path has no copy, or no path was given for a data set that is not redistributed.
        InputError: a link leads a file of the manifest out of the folder.
    """
    copy_path = locate_copy(manifest, path)
    report_progress = progress or _ignore_progress
    report = VerificationReport(name=manifest.name, labels=dict.fromkeys(manifest.labels, 0))
    manifest = _restrict_manifest(manifest, copy_path)
    expected = {file.path: file for file in manifest.files}
    for name, file in _find_files(manifest, copy_path):
        report_progress(name, report.records)
        report.files.append(_check_file(name, file, expected.pop(name, None)))
    if not report.files:
        files = ", ".join([file.path for file in manifest.files] or [part.files for part in manifest.parts])
        raise EvaluationError(
            f"{copy_path} has no file of {manifest.name} ({files or 'runs'}); {describe_source(manifest)}"
        )
    report.files += [FileCheck(path=name, status=FileStatus.MISSING) for name in expected]
    for check in report.files:
        if check.status in (FileStatus.CHANGED, FileStatus.MISSING):
            report.problems.append(f"{check.path} is {check.status}")
    for item in _read_records(manifest, copy_path):
        _add_record(report, item)
        report_progress("records", report.records)
    if manifest.records is not None and report.records != manifest.records:
        report.problems.append(f"{format_quantity(report.records, 'record')}, expected {manifest.records}")
    return report


def locate_copy(manifest: DatasetManifest, path: Path | None) -> Path:
    """Return the location of the copy to check. Raises EvaluationError if it does not exist."""
    if path is None and not manifest.redistributed:
        raise EvaluationError(f"{manifest.name} is not included: give the folder of your copy")
    copy_path = path or manifest.folder
    if not copy_path.exists():
        raise EvaluationError(f"there is no file or folder {copy_path}")
    return copy_path


def compute_checksums(path: Path) -> DatasetFile:
    """Return size and checksums of a file, read in blocks. Raises EvaluationError if it cannot be read."""
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as stream:
            for block in _read_blocks(stream):
                digest.update(block)
                size += len(block)
        unpacked = compute_unpacked_checksum(path) if path.suffix.lower() == ".gz" else ""
    except OSError as error:
        raise EvaluationError(f"{path} cannot be read: {error.strerror or error}") from None
    return DatasetFile(path=path.name, sha256=digest.hexdigest(), size=size, unpacked_sha256=unpacked)


def compute_unpacked_checksum(path: Path) -> str:
    """Return the SHA-256, in hex, of the content of a compressed file; empty if it cannot be decompressed."""
    digest = hashlib.sha256()
    try:
        with gzip.open(path, "rb") as stream:
            for block in _read_blocks(cast(BinaryIO, stream)):
                digest.update(block)
    except (OSError, EOFError, zlib.error):
        return ""
    return digest.hexdigest()


def _restrict_manifest(manifest: DatasetManifest, place: Path) -> DatasetManifest:
    """Return the manifest for the content of a path: the whole data set, one of its parts, or one file."""
    for part in manifest.parts:
        if place.is_dir() and place.name == part.name and not (place / part.name).exists():
            name = PurePosixPath(part.files).name
            return replace(manifest, records=part.records, parts=(replace(part, files=name),), files=())
    if place.is_file():
        files = tuple(file for file in manifest.files if PurePosixPath(file.path).name == place.name)
        records = files[0].records if files else manifest.records if not manifest.parts else None
        return replace(manifest, records=records, files=files[:1])
    return manifest


def _ignore_progress(activity: str, count: int) -> None:
    """Ignore the progress."""


def _read_blocks(stream: BinaryIO) -> Iterator[bytes]:
    while block := stream.read(_BLOCK):
        yield block


def _find_files(manifest: DatasetManifest, place: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a copy that contain runs, with their path below it."""
    if place.is_file():
        yield (manifest.files[0].path if manifest.files else place.name), place
        return
    if manifest.files:
        for file in manifest.files:
            path = resolve_path(place, file.path)
            if path.is_file():
                yield file.path, path
        return
    patterns = [part.files for part in manifest.parts]
    paths = (
        {p for pattern in patterns for p in place.glob(pattern)} if patterns else set(list_run_files(place))
    )
    for path in sorted(paths):
        if path.is_file() and path.resolve().is_relative_to(place.resolve()):
            yield path.relative_to(place).as_posix(), path


def _check_file(name: str, path: Path, expected: DatasetFile | None) -> FileCheck:
    real = compute_checksums(path)
    status = FileStatus.UNKNOWN
    if expected is not None and expected.unpacked_sha256:
        status = FileStatus.OK if real.unpacked_sha256 == expected.unpacked_sha256 else FileStatus.CHANGED
    elif expected is not None and expected.sha256:
        status = FileStatus.OK if real.sha256 == expected.sha256 else FileStatus.CHANGED
    return FileCheck(
        path=name,
        status=status,
        sha256=real.sha256,
        size=real.size or 0,
        unpacked_sha256=real.unpacked_sha256,
    )


def _read_records(manifest: DatasetManifest, place: Path) -> Iterator[Record | UnreadableRecord]:
    """Yield every record of the copy; a folder whose files form one data set is read as a whole."""
    format = formats().get(manifest.format)
    is_folder_format = (
        isinstance(format, FolderFormat) and place.is_dir() and format.parse_folder(place) is not None
    )
    is_single_source = is_folder_format or place.is_file() or not (manifest.files or manifest.parts)
    for source in [place] if is_single_source else [path for _, path in _find_files(manifest, place)]:
        try:
            yield from read(source, format=manifest.format)
        except InputError as error:
            yield UnreadableRecord(error=error.with_location(file=str(source)))


def _add_record(report: VerificationReport, item: Record | UnreadableRecord) -> None:
    if isinstance(item, UnreadableRecord):
        report.broken.append(item.error)
        return
    report.records += 1
    annotation = item.annotation
    report.failed += annotation.failed is True
    report.passed += annotation.failed is False
    if annotation.root_cause is not None:
        report.codes.update(annotation.root_cause.codes[:1])
    for label in report.labels:
        report.labels[label] += _has_label(annotation, label)


def _has_label(annotation: Any, label: str) -> bool:
    """Return whether an annotation has the label of a dotted name."""
    value = annotation
    for name in label.split("."):
        value = getattr(value, name, None)
    return value is not None and value not in ((), {}, "")
