"""Trajectory formats: one module for each importer, and the reader that detects formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.trajectory.formats.base import Format, UnreadableRecord, formats
    from agentguard.trajectory.formats.reader import load_records, load_trajectory, read

_EXPORTS = {
    "Format": "agentguard.trajectory.formats.base",
    "UnreadableRecord": "agentguard.trajectory.formats.base",
    "formats": "agentguard.trajectory.formats.base",
    "load_records": "agentguard.trajectory.formats.reader",
    "load_trajectory": "agentguard.trajectory.formats.reader",
    "read": "agentguard.trajectory.formats.reader",
}

__all__ = [
    "Format",
    "UnreadableRecord",
    "formats",
    "load_records",
    "load_trajectory",
    "read",
]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
