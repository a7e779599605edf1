"""Recovery: plan and apply rollbacks, repairs and hints, and verify their outcomes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.recover.acceptance.acceptance_test import (
        AcceptanceTest as AcceptanceTest,
        AcceptanceVerdict as AcceptanceVerdict,
        RuleCheck as RuleCheck,
    )
    from agentguard.recover.acceptance.answer_sources import AnswerSources as AnswerSources
    from agentguard.recover.acceptance.base import (
        AcceptanceEvaluator as AcceptanceEvaluator,
        AcceptanceFunction as AcceptanceFunction,
        AcceptanceRule as AcceptanceRule,
        BaseRule as BaseRule,
        SimpleRule as SimpleRule,
    )
    from agentguard.recover.acceptance.llm_rule import LlmRule as LlmRule
    from agentguard.recover.acceptance.rules import (
        FunctionRule as FunctionRule,
        NumberRule as NumberRule,
        PatternRule as PatternRule,
        SchemaRule as SchemaRule,
        TaskValueRule as TaskValueRule,
        TextRule as TextRule,
        ToolCallRule as ToolCallRule,
    )
    from agentguard.recover.actions import (
        Compensate as Compensate,
        DisableTools as DisableTools,
        Escalate as Escalate,
        RecoveryAction as RecoveryAction,
        Reject as Reject,
        Repair as Repair,
        Restart as Restart,
        Rewind as Rewind,
        Sample as Sample,
        SampleVariant as SampleVariant,
        SendMessage as SendMessage,
        Stop as Stop,
    )
    from agentguard.recover.budget import RecoveryBudget as RecoveryBudget
    from agentguard.recover.capabilities import Capabilities as Capabilities
    from agentguard.recover.outcome_verification import OutcomeVerification as OutcomeVerification
    from agentguard.recover.plan import (
        Recovery as Recovery,
        RecoveryOutcome as RecoveryOutcome,
        RecoveryPlan as RecoveryPlan,
        RecoveryTier as RecoveryTier,
    )
    from agentguard.recover.recovery_policy import RecoveryPolicy as RecoveryPolicy
    from agentguard.recover.selective_redundancy import SelectiveRedundancy as SelectiveRedundancy
    from agentguard.recover.strategy import (
        BaseStrategy as BaseStrategy,
        RecoveryContext as RecoveryContext,
        RecoveryStrategy as RecoveryStrategy,
        RecoveryStrategyFactory as RecoveryStrategyFactory,
        RepairFunction as RepairFunction,
        SimpleStrategy as SimpleStrategy,
    )
    from agentguard.recover.tool_effects import EffectClass as EffectClass, ToolEffect as ToolEffect

_EXPORTS = {
    "AcceptanceEvaluator": "agentguard.recover.acceptance.base",
    "AcceptanceFunction": "agentguard.recover.acceptance.base",
    "AcceptanceRule": "agentguard.recover.acceptance.base",
    "AcceptanceTest": "agentguard.recover.acceptance.acceptance_test",
    "AcceptanceVerdict": "agentguard.recover.acceptance.acceptance_test",
    "AnswerSources": "agentguard.recover.acceptance.answer_sources",
    "BaseRule": "agentguard.recover.acceptance.base",
    "BaseStrategy": "agentguard.recover.strategy",
    "Capabilities": "agentguard.recover.capabilities",
    "Compensate": "agentguard.recover.actions",
    "DisableTools": "agentguard.recover.actions",
    "EffectClass": "agentguard.recover.tool_effects",
    "Escalate": "agentguard.recover.actions",
    "FunctionRule": "agentguard.recover.acceptance.rules",
    "LlmRule": "agentguard.recover.acceptance.llm_rule",
    "NumberRule": "agentguard.recover.acceptance.rules",
    "OutcomeVerification": "agentguard.recover.outcome_verification",
    "PatternRule": "agentguard.recover.acceptance.rules",
    "Recovery": "agentguard.recover.plan",
    "RecoveryAction": "agentguard.recover.actions",
    "RecoveryBudget": "agentguard.recover.budget",
    "RecoveryContext": "agentguard.recover.strategy",
    "RecoveryOutcome": "agentguard.recover.plan",
    "RecoveryPlan": "agentguard.recover.plan",
    "RecoveryPolicy": "agentguard.recover.recovery_policy",
    "RecoveryStrategy": "agentguard.recover.strategy",
    "RecoveryStrategyFactory": "agentguard.recover.strategy",
    "RecoveryTier": "agentguard.recover.plan",
    "Reject": "agentguard.recover.actions",
    "Repair": "agentguard.recover.actions",
    "RepairFunction": "agentguard.recover.strategy",
    "Restart": "agentguard.recover.actions",
    "Rewind": "agentguard.recover.actions",
    "RuleCheck": "agentguard.recover.acceptance.acceptance_test",
    "Sample": "agentguard.recover.actions",
    "SampleVariant": "agentguard.recover.actions",
    "SchemaRule": "agentguard.recover.acceptance.rules",
    "SelectiveRedundancy": "agentguard.recover.selective_redundancy",
    "SendMessage": "agentguard.recover.actions",
    "SimpleRule": "agentguard.recover.acceptance.base",
    "SimpleStrategy": "agentguard.recover.strategy",
    "Stop": "agentguard.recover.actions",
    "TaskValueRule": "agentguard.recover.acceptance.rules",
    "TextRule": "agentguard.recover.acceptance.rules",
    "ToolCallRule": "agentguard.recover.acceptance.rules",
    "ToolEffect": "agentguard.recover.tool_effects",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
