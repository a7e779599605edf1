"""Judges: answer typed questions about a run with probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.judge.base import (
        RUN_FAILED as RUN_FAILED,
        ChoiceQuestion as ChoiceQuestion,
        ClosableJudge as ClosableJudge,
        GeneratedText as GeneratedText,
        Judge as Judge,
        JudgeAnswer as JudgeAnswer,
        Predicate as Predicate,
        Question as Question,
        ScoreQuestion as ScoreQuestion,
        TextGenerator as TextGenerator,
        VersionedJudge as VersionedJudge,
        build_root_cause_question as build_root_cause_question,
        close_judge as close_judge,
    )
    from agentguard.judge.cache import CachedJudge as CachedJudge, VerdictScope as VerdictScope
    from agentguard.judge.classifier.pooling_judge import (
        PoolingJudge as PoolingJudge,
        PoolingOptions as PoolingOptions,
    )
    from agentguard.judge.classifier.spec import ClassifierSpec as ClassifierSpec
    from agentguard.judge.embedded.judge import EmbeddedJudge as EmbeddedJudge
    from agentguard.judge.ensemble.panel import PanelJudge as PanelJudge
    from agentguard.judge.ensemble.question_variants import (
        BothOrdersJudge as BothOrdersJudge,
        OptionSwapJudge as OptionSwapJudge,
        ParaphraseJudge as ParaphraseJudge,
    )
    from agentguard.judge.ensemble.unanimous import UnanimousJudge as UnanimousJudge
    from agentguard.judge.factory import build_judge as build_judge
    from agentguard.judge.llm.chat_judge import ChatJudge as ChatJudge, ChatOptions as ChatOptions
    from agentguard.judge.llm.client import JudgeEndpoint as JudgeEndpoint
    from agentguard.judge.llm.pool_transport import build_replicated_endpoint as build_replicated_endpoint
    from agentguard.judge.llm.types import EndpointOptions as EndpointOptions
    from agentguard.judge.response_safety import (
        ResponseSafety as ResponseSafety,
        SafetyAction as SafetyAction,
        SafetyAssessment as SafetyAssessment,
        SafetyRules as SafetyRules,
        SafetyTier as SafetyTier,
    )

_EXPORTS = {
    "BothOrdersJudge": "agentguard.judge.ensemble.question_variants",
    "CachedJudge": "agentguard.judge.cache",
    "VerdictScope": "agentguard.judge.cache",
    "ChatJudge": "agentguard.judge.llm.chat_judge",
    "ChatOptions": "agentguard.judge.llm.chat_judge",
    "ChoiceQuestion": "agentguard.judge.base",
    "ClassifierSpec": "agentguard.judge.classifier.spec",
    "ClosableJudge": "agentguard.judge.base",
    "EmbeddedJudge": "agentguard.judge.embedded.judge",
    "EndpointOptions": "agentguard.judge.llm.types",
    "GeneratedText": "agentguard.judge.base",
    "Judge": "agentguard.judge.base",
    "JudgeAnswer": "agentguard.judge.base",
    "JudgeEndpoint": "agentguard.judge.llm.client",
    "OptionSwapJudge": "agentguard.judge.ensemble.question_variants",
    "PanelJudge": "agentguard.judge.ensemble.panel",
    "ParaphraseJudge": "agentguard.judge.ensemble.question_variants",
    "PoolingJudge": "agentguard.judge.classifier.pooling_judge",
    "PoolingOptions": "agentguard.judge.classifier.pooling_judge",
    "Predicate": "agentguard.judge.base",
    "Question": "agentguard.judge.base",
    "RUN_FAILED": "agentguard.judge.base",
    "ResponseSafety": "agentguard.judge.response_safety",
    "SafetyAction": "agentguard.judge.response_safety",
    "SafetyAssessment": "agentguard.judge.response_safety",
    "SafetyRules": "agentguard.judge.response_safety",
    "SafetyTier": "agentguard.judge.response_safety",
    "ScoreQuestion": "agentguard.judge.base",
    "TextGenerator": "agentguard.judge.base",
    "UnanimousJudge": "agentguard.judge.ensemble.unanimous",
    "VersionedJudge": "agentguard.judge.base",
    "build_judge": "agentguard.judge.factory",
    "build_replicated_endpoint": "agentguard.judge.llm.pool_transport",
    "build_root_cause_question": "agentguard.judge.base",
    "close_judge": "agentguard.judge.base",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
