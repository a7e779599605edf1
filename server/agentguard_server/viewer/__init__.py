"""Web viewer of runs, their diagnoses and their recoveries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard_server.viewer.app import build_app as build_app
    from agentguard_server.viewer.settings import ViewerSettings as ViewerSettings

_EXPORTS = {
    "ViewerSettings": "agentguard_server.viewer.settings",
    "build_app": "agentguard_server.viewer.app",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
