"""Rebuild of generated data sets and their comparison, and manifests for the data of users.

Generators are plug-ins of the entry-point group ``agentguard.generators``: callables that take the section
``[build]`` of a manifest as keywords and return records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from agentguard.errors import EvaluationError
from agentguard.evals.datasets.manifest import (
    DatasetFile,
    DatasetManifest,
    check_relative_path,
    describe_source,
    resolve_path,
)
from agentguard.evals.datasets.verification import VerificationReport, verify_dataset
from agentguard.plugins import Registry
from agentguard.quantity import format_quantity
from agentguard.trajectory.event_log.recorder import build_events
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import read
from agentguard.trajectory.model import Record
from agentguard.trajectory.safe_json import dumps

_MAX_DIFFERING = 20


@dataclass(slots=True, kw_only=True)
class RebuildResult:
    """Result of generating a data set again.

    Attributes:
        records: number of generated runs.
        compared: number of generated runs that were compared with a stored one.
        differing: ids of the runs that differ from the stored ones.
        sha256: of the event log of all generated runs, in hex.
        whole: whether all runs were generated, not only the first ``limit``.
        same_sum: whether the checksum equals that of the manifest; None if the two are not comparable.
    """

    records: int = 0
    compared: int = 0
    differing: list[str] = field(default_factory=list)
    sha256: str = ""
    whole: bool = True
    same_sum: bool | None = None

    @property
    def ok(self) -> bool:
        """Return whether all compared runs and checksums are equal."""
        return not self.differing and self.same_sum is not False


def generate_dataset(manifest: DatasetManifest) -> Iterator[Record]:
    """Return the runs of a generated data set, generated again from the parameters in its manifest.

    Raises:
        EvaluationError: the manifest names no generator, or the generator is not installed.
    """
    build_options = dict(manifest.build)
    first = build_options.pop("first", None)  # only the first N generated runs are stored
    name = str(build_options.pop("by", ""))
    if not name:
        raise EvaluationError(f"{manifest.name} has no generator; {describe_source(manifest)}")
    if name not in _REGISTRY:
        raise EvaluationError(f"{manifest.name} needs the generator {name!r}: pip install agentguard-lab")
    try:
        return islice(_REGISTRY.get(name)(**build_options), first)
    except (TypeError, ValueError) as error:  # parameters that the generator does not accept
        raise EvaluationError(f"the [build] of {manifest.name} cannot be used: {error}") from None


def rebuild(
    manifest: DatasetManifest,
    records: Iterable[Record],
    *,
    limit: int | None = None,
    on_record: Callable[[Record], object],
) -> RebuildResult:
    """Pass each generated run to ``on_record`` and compare it with the stored one.

    Args:
        manifest: the manifest of the data set.
        records: the runs that `generate_dataset` returned.
        limit: maximum number of runs.
        on_record: called with every run, for example to write or to count it.
    """
    result = RebuildResult(whole=limit is None)
    digest = hashlib.sha256()
    stored_records = _read_stored_records(manifest)
    for record in islice(records, limit):
        result.records += 1
        for event in build_events(record):
            digest.update(dumps(event) + b"\n")
        stored = next(stored_records, None)
        if stored is not None:
            result.compared += 1
            if record != stored and len(result.differing) < _MAX_DIFFERING:
                result.differing.append(record.trajectory.id)
        on_record(record)
    result.sha256 = digest.hexdigest()
    if result.whole:
        _compare_files(manifest, result, stored_records)
    return result


def describe_dataset(
    path: Path, *, name: str, format: str, title: str = "", licence: str = "", origin: str = "natural"
) -> tuple[dict[str, Any], VerificationReport]:
    """Return a manifest, as data for TOML, of the runs at a path, and the verification report.

    Raises:
        EvaluationError: no run can be read there.
        FormatError: a file has a name that is not valid on every system.
    """
    folder = path if path.is_dir() else path.parent
    manifest = DatasetManifest(
        name=name, folder=folder, title=title or name, format=format, licence=licence, origin=origin,
        redistributed=True, labels=_LABELS,
    )  # fmt: skip
    report = verify_dataset(manifest, path)
    if not report.records:
        first_error = f"; the first: {report.broken[0]}" if report.broken else ""
        raise EvaluationError(f"no run can be read in {path}{first_error}")
    for file in report.files:
        check_relative_path(file.path, f"file {file.path!r}")
    data = {
        "name": name,
        "title": manifest.title,
        "format": format,
        "licence": licence or "not stated",
        "origin": origin,
        "redistributed": True,
        "records": report.records,
        "labels": [label for label, count in report.labels.items() if count],
        "file": [
            {"path": f.path, "sha256": f.sha256, "size": f.size}
            | ({"unpacked_sha256": f.unpacked_sha256} if f.unpacked_sha256 else {})
            for f in report.files
        ],
    }
    return data, report


_LABELS = ("failed", "root_cause.step", "root_cause.agent", "root_cause.codes", "step_labels", "modes")
_REGISTRY: Registry[Callable[..., Iterable[Record]]] = Registry(
    "generator", group="agentguard.generators", builtin={}
)


def _read_stored_records(manifest: DatasetManifest) -> Iterator[Record]:
    """Yield the runs stored beside the manifest, in order; none if only the manifest is installed."""
    for file in manifest.files if manifest.redistributed else ():
        path = resolve_path(manifest.folder, file.path)
        if not path.is_file():
            return
        for item in read(path, format=manifest.format):
            if isinstance(item, UnreadableRecord):
                raise EvaluationError(f"a stored run cannot be read: {item.error}")
            yield item


def _compare_files(
    manifest: DatasetManifest, result: RebuildResult, stored_records: Iterator[Record]
) -> None:
    remaining = sum(1 for _ in stored_records)
    if remaining:
        result.differing.append(f"not generated: {format_quantity(remaining, 'stored run')}")
    if manifest.records is not None and result.records != manifest.records:
        result.differing.append(
            f"{format_quantity(result.records, 'run')} generated, {manifest.records} stored"
        )
    file = manifest.files[0] if len(manifest.files) == 1 else DatasetFile(path="")
    expected_sha256 = file.unpacked_sha256 or ("" if file.path.endswith(".gz") else file.sha256)
    if expected_sha256 and manifest.format == "event_log":
        result.same_sum = expected_sha256 == result.sha256
