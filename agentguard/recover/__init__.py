"""Recovery: plan and apply rollbacks, repairs and hints, and verify their outcomes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.recover.acceptance.acceptance_test import AcceptanceTest as AcceptanceTest
    from agentguard.recover.acceptance.acceptance_test import AcceptanceVerdict as AcceptanceVerdict
    from agentguard.recover.acceptance.acceptance_test import RuleCheck as RuleCheck
    from agentguard.recover.acceptance.answer_sources import AnswerSources as AnswerSources
    from agentguard.recover.acceptance.base import AcceptanceEvaluator as AcceptanceEvaluator
    from agentguard.recover.acceptance.base import AcceptanceFunction as AcceptanceFunction
    from agentguard.recover.acceptance.base import AcceptanceRule as AcceptanceRule
    from agentguard.recover.acceptance.base import BaseRule as BaseRule
    from agentguard.recover.acceptance.base import SimpleRule as SimpleRule
    from agentguard.recover.acceptance.llm_rule import LlmRule as LlmRule
    from agentguard.recover.acceptance.rules import FunctionRule as FunctionRule
    from agentguard.recover.acceptance.rules import NumberRule as NumberRule
    from agentguard.recover.acceptance.rules import PatternRule as PatternRule
    from agentguard.recover.acceptance.rules import SchemaRule as SchemaRule
    from agentguard.recover.acceptance.rules import TaskValueRule as TaskValueRule
    from agentguard.recover.acceptance.rules import TextRule as TextRule
    from agentguard.recover.acceptance.rules import ToolCallRule as ToolCallRule
    from agentguard.recover.actions import Compensate as Compensate
    from agentguard.recover.actions import DisableTools as DisableTools
    from agentguard.recover.actions import Escalate as Escalate
    from agentguard.recover.actions import RecoveryAction as RecoveryAction
    from agentguard.recover.actions import Reject as Reject
    from agentguard.recover.actions import Repair as Repair
    from agentguard.recover.actions import Restart as Restart
    from agentguard.recover.actions import Rewind as Rewind
    from agentguard.recover.actions import Sample as Sample
    from agentguard.recover.actions import SampleVariant as SampleVariant
    from agentguard.recover.actions import SendMessage as SendMessage
    from agentguard.recover.actions import Stop as Stop
    from agentguard.recover.budget import RecoveryBudget as RecoveryBudget
    from agentguard.recover.capabilities import Capabilities as Capabilities
    from agentguard.recover.outcome_verification import OutcomeVerification as OutcomeVerification
    from agentguard.recover.plan import Recovery as Recovery
    from agentguard.recover.plan import RecoveryOutcome as RecoveryOutcome
    from agentguard.recover.plan import RecoveryPlan as RecoveryPlan
    from agentguard.recover.plan import RecoveryTier as RecoveryTier
    from agentguard.recover.recovery_policy import RecoveryPolicy as RecoveryPolicy
    from agentguard.recover.selective_redundancy import SelectiveRedundancy as SelectiveRedundancy
    from agentguard.recover.strategy import BaseStrategy as BaseStrategy
    from agentguard.recover.strategy import RecoveryContext as RecoveryContext
    from agentguard.recover.strategy import RecoveryStrategy as RecoveryStrategy
    from agentguard.recover.strategy import RecoveryStrategyFactory as RecoveryStrategyFactory
    from agentguard.recover.strategy import RepairFunction as RepairFunction
    from agentguard.recover.strategy import SimpleStrategy as SimpleStrategy
    from agentguard.recover.tool_effects import EffectClass as EffectClass
    from agentguard.recover.tool_effects import ToolEffect as ToolEffect

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
