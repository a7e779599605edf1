"""Configuration models of the policy file and of the judge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.config.acceptance import AcceptanceSettings as AcceptanceSettings
    from agentguard.config.judge import JudgeSettings as JudgeSettings
    from agentguard.config.policy import (
        BudgetSettings as BudgetSettings,
        Policy as Policy,
        RecoverSettings as RecoverSettings,
        ToolSettings as ToolSettings,
    )
    from agentguard.config.policy_discovery import find_policy as find_policy
    from agentguard.config.prices import TokenPrice as TokenPrice

_EXPORTS = {
    "AcceptanceSettings": "agentguard.config.acceptance",
    "BudgetSettings": "agentguard.config.policy",
    "JudgeSettings": "agentguard.config.judge",
    "Policy": "agentguard.config.policy",
    "RecoverSettings": "agentguard.config.policy",
    "TokenPrice": "agentguard.config.prices",
    "ToolSettings": "agentguard.config.policy",
    "find_policy": "agentguard.config.policy_discovery",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
