"""Integration with custom agent loops: the loop calls its model and its tools through a `LoopRun`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.integrations.loop.run import LoopRun as LoopRun

_EXPORTS = {
    "LoopRun": "agentguard.integrations.loop.run",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
