"""The judges that a policy names: one way from settings to a judge, for whoever needs one."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from agentguard.errors import ConfigError
from agentguard.judge.cache import CachedJudge
from agentguard.judge.chat import ChatJudge, ChatOptions
from agentguard.judge.endpoint import Endpoint
from agentguard.judge.wire import EndpointOptions
from agentguard.settings_judge import AskedSettings, ClassifierSettings, EndpointSettings

if TYPE_CHECKING:
    from agentguard.judge.chat import Schemata
    from agentguard.judge.classifier import Classifier
    from agentguard.judge.pooling import PoolingJudge

KEY: Final = "AGENTGUARD_JUDGE_KEY"
"""Environment variable with an endpoint's key, where ``api_key_env`` names no other."""


def judge_from(settings: EndpointSettings, *, schemata: Schemata = ()) -> CachedJudge:
    """A judge that remembers its answers: classifiers, or else a chat model; nothing is connected here.

    Args:
        settings: where it is and how it is asked.
        schemata: texts of earlier failures to show a chat model after a run, or what finds them.

    Raises:
        ConfigError: the address or a limit is wrong, the variable that is to hold the key is not set, or
            what is said of a classifier does not go together.
        ModelFileError: a classifier's head cannot be read.
        MissingExtra: the openai package is not installed.
    """
    if isinstance(settings, AskedSettings) and settings.kind == "pooling":
        return CachedJudge(pooling_judge(settings))
    endpoint = endpoint_of(settings)
    return CachedJudge(
        ChatJudge(endpoint, schemata=schemata, options=ChatOptions(deadline_s=settings.deadline_s))
    )


def pooling_judge(settings: AskedSettings) -> PoolingJudge:
    """The judge behind some classifiers. Raises as `judge_from`."""
    from agentguard.judge.pooling import PoolingJudge, PoolingOptions

    classifiers = tuple(_classifier(one) for one in settings.classifiers)
    options = PoolingOptions(deadline_s=settings.deadline_s, context_tokens=settings.context_tokens)
    return PoolingJudge(endpoint_of(settings), classifiers, options=options)


def close_judge(judge: object) -> None:
    """Close what a judge holds open, and what the judges inside of it do; a later question opens it anew."""
    if judge is None:
        return
    close = getattr(judge, "close", None)
    if callable(close):
        close()
        return
    for inner in (getattr(judge, "judge", None), *getattr(judge, "judges", ())):
        close_judge(inner)


def _classifier(given: ClassifierSettings) -> Classifier:
    from agentguard.judge.classifier import Classifier
    from agentguard.judge.head import Head

    head = None if given.head is None else Head.load(given.head)
    if head is not None:
        head = replace(head, options=_meant(given, head.options))
    return Classifier(
        question=given.question,
        task=given.task,
        options=_meant(given, given.options),
        by=given.by,
        chosen=given.chosen,
        head=head,
    )


def _meant(given: ClassifierSettings, options: tuple[str, ...]) -> tuple[str, ...]:
    """The options as questions have them: those of response safety are named by the ids of the tiers.

    Raises:
        ConfigError: they are not its tiers, so that the question could never be answered.
    """
    from agentguard.judge.safety import TAXONOMY, SafetyTier, described

    if given.question != TAXONOMY or not (options or given.task == "classify"):
        return options
    known = {tier.value: described(tier) for tier in SafetyTier}
    if given.task != "score" and set(options) != set(known):
        raise ConfigError(
            f"judge: a classifier of {TAXONOMY} has the classes {', '.join(known)}, and no other"
        )
    return tuple(known[option] for option in options)


def endpoint_of(settings: EndpointSettings) -> Endpoint:
    """The client to where a judge is. Raises as `judge_from`."""
    options = EndpointOptions(deadline_s=settings.deadline_s, context_tokens=settings.context_tokens)
    variable = settings.api_key_env or KEY
    key = os.environ.get(variable)
    if settings.api_key_env is not None and not key:
        raise ConfigError(f"judge: the environment variable {variable} holds no key")
    if settings.base_url is not None:
        return Endpoint(settings.base_url, model=settings.model, api_key=key, options=options)
    from agentguard.judge.replicas import replicated

    return replicated(
        settings.replicas,
        model=settings.model,
        key_env=variable if key else None,
        options=options,
        pool=settings.pool,
    )
