"""Integration with pydantic-ai: a capability that guards the runs of an ``Agent``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.integrations.pydantic_ai.capability import GuardCapability as GuardCapability

_EXPORTS = {
    "GuardCapability": "agentguard.integrations.pydantic_ai.capability",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, extra="pydantic-ai")
