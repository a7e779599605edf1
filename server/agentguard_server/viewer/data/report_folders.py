"""Output folders of campaigns, of searches for causal cycles, and of batch jobs, with their reports."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from agentguard.batch import BatchReport, build_batch_report, compute_table_version
from agentguard.chaos import (
    CampaignReport,
    build_campaign_report,
    find_campaign_folders,
    read_campaign_result,
)
from agentguard.chaos.campaign_runner import JOURNAL
from agentguard.chaos.causality import StitchingReport, find_stitching_folders, read_stitching_report
from agentguard.chaos.causality.stitching_report import REPORT_FILE
from agentguard.errors import AgentGuardError
from agentguard_server.viewer.data.file_cache import FileCache

R = TypeVar("R")

_MAX_JOURNAL_BYTES: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFolder(Generic[R]):
    """Output folder with its report.

    Attributes:
        id: identifier in a URL: 16 hexadecimal digits of the SHA-256 of the address.
        name: name of the folder; of a batch job, its path or URL.
        changed_at: modification time of the report, epoch seconds; 0 if it is not known.
        report: the report; None if it cannot be read.
        problem: reason why the report cannot be read.
    """

    id: str
    name: str
    changed_at: float = 0.0
    report: R | None = None
    problem: str = ""


class CampaignFolders:
    """Campaigns and searches for causal cycles in folders; safe to use from several threads.

    Args:
        paths: output folders, and folders that contain them; searched again on each call.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._campaigns = FileCache(_read_campaign)
        self._searches = FileCache(_read_search)

    def list_campaigns(self) -> tuple[ReportFolder[CampaignReport], ...]:
        """Return all campaigns, latest first."""
        return _list_folders(find_campaign_folders(self._paths), JOURNAL, self._campaigns)

    def list_searches(self) -> tuple[ReportFolder[StitchingReport], ...]:
        """Return all searches for causal cycles, latest first."""
        return _list_folders(find_stitching_folders(self._paths), REPORT_FILE, self._searches)

    def find_campaign(self, id: str) -> ReportFolder[CampaignReport] | None:
        """Return the campaign with an id, or None."""
        return next((one for one in self.list_campaigns() if one.id == id), None)

    def find_search(self, id: str) -> ReportFolder[StitchingReport] | None:
        """Return the search with an id, or None."""
        return next((one for one in self.list_searches() if one.id == id), None)


class BatchFolders:
    """Output folders of batch jobs; safe to use from several threads.

    Args:
        urls: paths and URLs of the folders.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = {_build_id(url): url for url in urls}
        self._reports: dict[str, tuple[str, BatchReport]] = {}
        self._lock = threading.Lock()

    def list_folders(self) -> tuple[ReportFolder[BatchReport], ...]:
        """Return all folders with their reports, in the given order."""
        return tuple(self._read(id, url) for id, url in self._urls.items())

    def find_folder(self, id: str) -> ReportFolder[BatchReport] | None:
        """Return the folder with an id, or None."""
        return self._read(id, self._urls[id]) if id in self._urls else None

    def _read(self, id: str, url: str) -> ReportFolder[BatchReport]:
        """Return a folder; its report is built again if the table has changed."""
        try:
            with self._lock:
                version = compute_table_version(url)
                if self._reports.get(id, ("", None))[0] != version:
                    self._reports[id] = version, build_batch_report(url)
                return ReportFolder(id=id, name=url, report=self._reports[id][1])
        except (AgentGuardError, OSError, ValueError) as error:  # pyarrow's errors are ValueError or OSError
            return ReportFolder(id=id, name=url, problem=str(error))


def _list_folders(
    folders: Iterable[Path], file_name: str, cache: FileCache[ReportFolder[R]]
) -> tuple[ReportFolder[R], ...]:
    """Return the folders, latest first; ``cache`` reads the file ``file_name`` of each."""
    read_folders = []
    for folder in {folder.resolve() for folder in folders}:
        try:
            read_folders.append(cache.read(folder / file_name))
        except OSError as error:
            read_folders.append(
                ReportFolder(id=_build_id(str(folder)), name=folder.name, problem=str(error.strerror))
            )
    return tuple(sorted(read_folders, key=lambda one: (-one.changed_at, one.name)))


def _read_campaign(journal: Path) -> ReportFolder[CampaignReport]:
    return _read_report(journal, lambda folder: build_campaign_report(read_campaign_result(folder)))


def _read_search(report_file: Path) -> ReportFolder[StitchingReport]:
    return _read_report(report_file, read_stitching_report)


def _read_report(path: Path, read: Callable[[Path], R]) -> ReportFolder[R]:
    """Read the report of the folder that contains ``path``."""
    folder, stat = path.parent, path.stat()
    report, problem = None, ""
    try:
        if stat.st_size > _MAX_JOURNAL_BYTES:
            problem = f"{path.name} is larger than {_MAX_JOURNAL_BYTES} bytes"
        else:
            report = read(folder)
    except AgentGuardError as error:
        problem = str(error)
    return ReportFolder(
        id=_build_id(str(folder)),
        name=folder.name,
        changed_at=stat.st_mtime,
        report=report,
        problem=problem,
    )


def _build_id(address: str) -> str:
    return hashlib.sha256(address.encode(errors="surrogateescape")).hexdigest()[:16]
