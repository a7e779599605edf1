"""Integration with Google's Agent Development Kit: the guard as a plugin of the runner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.integrations.google_adk.plugin import GuardPlugin as GuardPlugin

_EXPORTS = {
    "GuardPlugin": "agentguard.integrations.google_adk.plugin",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, extra="google-adk")
