"""Test support for agentguard and its users: fake backend, contract suites, guard check and virtual clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.testing.virtual_clock import VirtualClock as VirtualClock

_EXPORTS = {
    "VirtualClock": "agentguard.testing.virtual_clock",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
