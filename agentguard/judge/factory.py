"""Factory of the judges that a policy names."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from agentguard.config.judge import ClassifierSettings, EndpointSettings, QuestionJudgeSettings
from agentguard.config.prices import PriceTable
from agentguard.errors import ConfigError
from agentguard.judge.cache import CachedJudge, VerdictStore
from agentguard.judge.llm.chat_judge import ChatJudge, ChatOptions
from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.types import EndpointOptions

if TYPE_CHECKING:
    from agentguard.judge.classifier.pooling_judge import PoolingJudge
    from agentguard.judge.classifier.spec import ClassifierSpec
    from agentguard.judge.llm.chat_judge import SchemaSource

API_KEY_VARIABLE: Final = "AGENTGUARD_JUDGE_KEY"
"""Environment variable with an endpoint's key, unless ``api_key_env`` names another."""


def build_judge(
    settings: EndpointSettings,
    *,
    schemata: SchemaSource = (),
    store: VerdictStore | None = None,
    prices: PriceTable | None = None,
) -> CachedJudge:
    """Build a cached judge: classifiers or a chat model; no connection is opened.

    Args:
        settings: endpoint and options of the judge.
        schemata: texts of earlier failures to show a chat model after a run, or a function that selects them.
        store: persistent store of the answers.
        prices: prices by pattern of model names, for the cost of a chat model's answers.

    Raises:
        ConfigError: the URL or a limit is invalid, the variable for the key is not set, or the settings of a
            classifier contradict each other.
        ModelFileError: a classifier's head cannot be read.
        MissingExtra: the openai package is not installed.
    """
    if isinstance(settings, QuestionJudgeSettings) and settings.kind == "pooling":
        return CachedJudge(build_pooling_judge(settings), store=store)
    endpoint = build_endpoint(settings)
    options = replace(build_chat_options(settings), prices=prices or {})
    judge = ChatJudge(endpoint, schemata=schemata, options=options)
    return CachedJudge(judge, store=store)


def build_chat_options(settings: EndpointSettings) -> ChatOptions:
    """Build the options of a chat judge."""
    return ChatOptions(
        deadline_s=settings.deadline_s,
        min_label_mass=settings.min_label_mass,
        reasoning_tokens=settings.reasoning_tokens,
    )


def build_pooling_judge(settings: QuestionJudgeSettings) -> PoolingJudge:
    """Build the judge of the classifiers. Raises as `build_judge`."""
    from agentguard.judge.classifier.pooling_judge import PoolingJudge, PoolingOptions

    classifiers = tuple(_build_classifier(one) for one in settings.classifiers)
    options = PoolingOptions(deadline_s=settings.deadline_s, context_tokens=settings.context_tokens)
    return PoolingJudge(build_endpoint(settings), classifiers, options=options)


def _build_classifier(settings: ClassifierSettings) -> ClassifierSpec:
    from agentguard.judge.classifier.linear_head import LinearHead
    from agentguard.judge.classifier.spec import ClassifierSpec

    head = None if settings.head is None else LinearHead.load(settings.head)
    if head is not None:
        head = replace(head, options=_resolve_options(settings, head.options))
    return ClassifierSpec(
        question=settings.question,
        task=settings.task,
        options=_resolve_options(settings, settings.options),
        by=settings.by,
        chosen=settings.chosen,
        head=head,
    )


def _resolve_options(settings: ClassifierSettings, options: tuple[str, ...]) -> tuple[str, ...]:
    """Return the options of the questions; ids of response safety tiers become their descriptions.

    Raises:
        ConfigError: the options of a classifier of response safety are not the tiers.
    """
    from agentguard.judge.response_safety import TAXONOMY, SafetyTier, describe_tier

    if settings.question != TAXONOMY or not (options or settings.task == "classify"):
        return options
    tier_texts = {tier.value: describe_tier(tier) for tier in SafetyTier}
    if settings.task != "score" and set(options) != set(tier_texts):
        raise ConfigError(
            f"judge: a classifier of {TAXONOMY} must have exactly the classes {', '.join(tier_texts)}"
        )
    return tuple(tier_texts[option] for option in options)


def build_endpoint(settings: EndpointSettings) -> JudgeEndpoint:
    """Build the client of the judge's endpoint. Raises as `build_judge`."""
    template = settings.chat_template_kwargs
    options = EndpointOptions(
        deadline_s=settings.deadline_s,
        retries=settings.retries,
        max_concurrent=settings.max_concurrent,
        context_tokens=settings.context_tokens,
        extra_body={} if template is None else {"chat_template_kwargs": dict(template)},
    )
    variable = settings.api_key_env or API_KEY_VARIABLE
    key = os.environ.get(variable)
    if settings.api_key_env is not None and not key:
        raise ConfigError(f"judge: the environment variable {variable} is empty or not set")
    if settings.base_url is not None:
        return JudgeEndpoint(settings.base_url, model=settings.model, api_key=key, options=options)
    from agentguard.judge.llm.pool_transport import build_replicated_endpoint

    return build_replicated_endpoint(
        settings.replicas,
        model=settings.model,
        key_env=variable if key else None,
        options=options,
        pool=settings.pool,
    )
