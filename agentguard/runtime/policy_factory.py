"""Construction of the components of a guard from a policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentguard.config.policy import Policy
from agentguard.detect.base import detectors
from agentguard.judge.response_safety import (
    TIERS_WORST_FIRST,
    ResponseSafety,
    SafetyAction,
    SafetyRules,
    format_trigger,
)
from agentguard.localize.base import Localizer
from agentguard.recover.acceptance.base import AcceptanceRule
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.outcome_verification import OutcomeVerification
from agentguard.recover.recovery_policy import DEFAULT_ESCALATION, RecoveryPolicy
from agentguard.recover.selective_redundancy import SelectiveRedundancy
from agentguard.runtime.guard_components import build_localizer
from agentguard.runtime.live_judge import (
    OUTCOME_MODEL_TRIGGER,
    LiveJudge,
    LiveJudgeOptions,
)

if TYPE_CHECKING:
    from agentguard.judge.base import Judge
    from agentguard.recover.acceptance.acceptance_test import AcceptanceTest
    from agentguard.runtime.error_schema_feedback import SchemaFeedback
    from agentguard.store.store import Store


def build_policy_localizer(policy: Policy, judge: Judge | None) -> Localizer:
    """Return the policy's localizer; without a judge in its options, it gets the policy's judge."""
    from agentguard.localize.llm.base import JUDGE_METHODS

    settings = policy.resolve_localizer()
    options = settings.to_options()
    own = {"judge", "base_url", "replicas"} & set(options)
    if judge is not None and policy.judge is not None and settings.name in JUDGE_METHODS and not own:
        options = {"judge": judge, "swap": policy.judge.uses_both_orders, **options}
    return build_localizer(settings.name, options)


def build_policy_judge(
    policy: Policy, store: Store | None = None, schemata: SchemaFeedback | None = None
) -> Judge | None:
    """Return the policy's judge without a connection; None if the policy has no judge.

    The store caches its answers. The prompt of a chat model contains the schemata that match a run.
    """
    if policy.judge is None:
        return None
    from agentguard.judge.factory import build_judge

    texts = () if schemata is None else schemata.list_prompt_texts
    return build_judge(policy.judge, schemata=texts, store=store, prices=policy.prices)


def _build_second_judge(policy: Policy) -> Judge | None:
    """Return the judge that must agree with the policy's judge, if there is one."""
    if policy.judge is None or policy.judge.second is None:
        return None
    from agentguard.judge.factory import build_judge

    return build_judge(policy.judge.second, prices=policy.prices)


def build_live_judge(policy: Policy, judge: Judge | None) -> LiveJudge | None:
    """Return the judge of live runs or the embedded model in its place; None if the policy has neither."""
    if policy.live_model is not None:
        from agentguard.judge.base import RUN_FAILED
        from agentguard.judge.embedded.judge import EmbeddedJudge

        return LiveJudge(
            EmbeddedJudge(policy.live_model.model),
            options=LiveJudgeOptions(
                threshold=policy.live_model.threshold, step_threshold=policy.live_model.step_threshold
            ),
            question=RUN_FAILED,
            trigger=OUTCOME_MODEL_TRIGGER,
        )
    if judge is None or policy.judge is None or policy.judge.live is None:
        return None
    options = LiveJudgeOptions(**policy.judge.live.model_dump())
    return LiveJudge(judge, second_judge=_build_second_judge(policy), options=options)


def build_acceptance_test(policy: Policy, judge: Judge | None) -> AcceptanceTest | None:
    """Return the policy's acceptance test, if it has one. Raises ConfigError if a rule is wrong."""
    settings = policy.acceptance
    if settings is None:
        return None
    from agentguard.recover.acceptance.acceptance_test import AcceptanceTest, build_rules

    rules: list[AcceptanceRule] = list(build_rules(settings.rules))
    if settings.question is not None and judge is not None and policy.judge is not None:
        from agentguard.recover.acceptance.answer_sources import AnswerSources
        from agentguard.recover.acceptance.llm_rule import LlmRule

        question, second = settings.question, _build_second_judge(policy)
        has_sources = question.source_tools or question.source_files
        sources = AnswerSources(tools=question.source_tools, files=question.source_files)
        rules.append(
            LlmRule(
                question.text,
                [judge] if second is None else [judge, second],
                min_probability=question.min_probability,
                sources=sources if has_sources else None,
            )
        )
    return AcceptanceTest(*rules)


def build_response_safety(policy: Policy, judge: Judge | None) -> ResponseSafety | None:
    """Return the policy's response safety, if it has one. Raises ConfigError if one judge would decide."""
    settings = policy.safety
    if settings is None or judge is None or policy.judge is None:
        return None
    tiers = {tier: getattr(settings, tier.value) for tier in TIERS_WORST_FIRST}
    rules = SafetyRules(
        thresholds={tier: one.threshold for tier, one in tiers.items()},
        actions={tier: SafetyAction(one.action) for tier, one in tiers.items() if one.action is not None},
        unknown=SafetyAction(settings.unknown),
    )
    return ResponseSafety(
        judge,
        second_judge=_build_second_judge(policy),
        rules=rules,
        allow_single_judge=settings.alone,
        rates_requests=settings.requests,
    )


def select_detectors(policy: Policy) -> dict[str, Mapping[str, Any]] | None:
    """Return the policy's detectors with their options; None for all detectors with their defaults.

    Raises:
        UnknownPlugin: no detector has a configured name.
    """
    if not policy.detectors and policy.enabled_detectors is None:
        return None
    names = detectors().names() if policy.enabled_detectors is None else policy.enabled_detectors
    disabled = {name for name, options in policy.detectors.items() if options is False}
    unknown = set(policy.detectors) - set(detectors().names())
    for name in sorted(unknown):
        detectors().get(name)  # raises UnknownPlugin with the registered names
    return {name: policy.get_detector_options(name) for name in names if name not in disabled}


def build_recovery_policy(policy: Policy) -> RecoveryPolicy:
    """Return the recovery policy of a policy file."""
    settings = policy.recover
    safety = {} if policy.safety is None else policy.safety.list_escalations()
    return RecoveryPolicy(
        on_fail=DEFAULT_ESCALATION if settings.on_fail is None else settings.on_fail,
        escalations=policy.list_escalations()
        | {format_trigger(SafetyAction(name)): levels for name, levels in safety.items()},
        budget=RecoveryBudget(**policy.budgets.model_dump()),
        verification=OutcomeVerification(window=settings.verification_window, threshold=settings.threshold),
        threshold=settings.threshold,
        effect_threshold=settings.effect_threshold,
        max_hypotheses=settings.max_hypotheses,
        on_guard_error=policy.on_guard_error,
        redundancy=None
        if settings.redundancy is None
        else SelectiveRedundancy(**settings.redundancy.model_dump()),
    )
