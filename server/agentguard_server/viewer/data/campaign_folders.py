"""Campaigns whose reports the viewer shows, with a cache of their journals."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agentguard.chaos import (
    CampaignReport,
    build_campaign_report,
    find_campaign_folders,
    read_campaign_result,
)
from agentguard.chaos.campaign_runner import JOURNAL
from agentguard.errors import AgentGuardError
from agentguard_server.viewer.data.file_cache import FileCache

_MAX_BYTES: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignFolder:
    """Output folder of a campaign.

    Attributes:
        id: identifier in a URL: digits of the SHA-256 sum of the path.
        name: name of the folder.
        changed_at: time of the last run, epoch seconds.
        report: report of the runs that are done; None if the journal cannot be read.
        problem: reason why the journal cannot be read.
    """

    id: str
    name: str
    changed_at: float = 0.0
    report: CampaignReport | None = None
    problem: str = ""


class CampaignFolders:
    """Campaigns in folders; safe to use from several threads.

    Args:
        paths: folders of campaigns, and folders that contain them; searched again on each call.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._cache = FileCache(_read_campaign)

    def list_folders(self) -> tuple[CampaignFolder, ...]:
        """Return all campaigns, latest first."""
        folders = {folder.resolve() for folder in find_campaign_folders(self._paths)}
        return tuple(sorted(map(self._read, folders), key=lambda one: (-one.changed_at, one.name)))

    def find_folder(self, id: str) -> CampaignFolder | None:
        """Return the campaign of an id, or None."""
        return next((one for one in self.list_folders() if one.id == id), None)

    def _read(self, folder: Path) -> CampaignFolder:
        try:
            return self._cache.read(folder / JOURNAL)
        except OSError as error:
            return CampaignFolder(id=_build_id(folder), name=folder.name, problem=str(error.strerror))


def _read_campaign(journal: Path) -> CampaignFolder:
    folder, stat = journal.parent, journal.stat()
    report, problem = None, ""
    try:
        if stat.st_size > _MAX_BYTES:
            problem = f"the journal is larger than {_MAX_BYTES} bytes"
        else:
            report = build_campaign_report(read_campaign_result(folder))
    except AgentGuardError as error:
        problem = str(error)
    return CampaignFolder(
        id=_build_id(folder), name=folder.name, changed_at=stat.st_mtime, report=report, problem=problem
    )


def _build_id(folder: Path) -> str:
    return hashlib.sha256(str(folder).encode(errors="surrogateescape")).hexdigest()[:16]
