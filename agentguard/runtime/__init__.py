"""Runtime of a guarded run: consumes its events and applies recovery plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.runtime.session import Session as Session
    from agentguard.runtime.session_config import SessionConfig as SessionConfig

_EXPORTS = {
    "Session": "agentguard.runtime.session",
    "SessionConfig": "agentguard.runtime.session_config",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
