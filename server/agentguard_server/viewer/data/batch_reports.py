"""Reports of batch diagnoses, with a cache."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from agentguard.batch import BatchReport, build_batch_report, compute_table_version
from agentguard.errors import AgentGuardError


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFolder:
    """Output folder of a batch diagnosis.

    Attributes:
        id: identifier in a URL: digits of the SHA-256 sum of the folder's address.
        url: path or URL of the folder.
        report: its report; None if the folder cannot be read.
        problem: reason why the folder cannot be read.
    """

    id: str
    url: str
    report: BatchReport | None = None
    problem: str = ""


class BatchFolders:
    """Output folders of batch diagnoses; safe to use from several threads.

    Args:
        urls: paths and URLs of the folders.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = {_build_id(url): url for url in urls}
        self._reports: dict[str, tuple[str, BatchReport]] = {}
        self._lock = threading.Lock()

    def list_folders(self) -> tuple[BatchFolder, ...]:
        """Return all folders with their reports, in the given order."""
        return tuple(self._read(id, url) for id, url in self._urls.items())

    def find_folder(self, id: str) -> BatchFolder | None:
        """Return the folder of an id, or None."""
        return self._read(id, self._urls[id]) if id in self._urls else None

    def _read(self, id: str, url: str) -> BatchFolder:
        """Return a folder; its report is built again if the table has changed."""
        try:
            with self._lock:
                version = compute_table_version(url)
                if self._reports.get(id, ("", None))[0] != version:
                    self._reports[id] = version, build_batch_report(url)
                return BatchFolder(id=id, url=url, report=self._reports[id][1])
        except (AgentGuardError, OSError, ValueError) as error:  # pyarrow's errors are ValueError or OSError
            return BatchFolder(id=id, url=url, problem=str(error))


def _build_id(url: str) -> str:
    return hashlib.sha256(url.encode(errors="surrogateescape")).hexdigest()[:16]
