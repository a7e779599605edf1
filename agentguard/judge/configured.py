"""The judges that a policy names: one way from settings to a chat judge, for whoever needs one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from agentguard.errors import ConfigError
from agentguard.judge.cache import CachedJudge
from agentguard.judge.chat import ChatJudge, ChatOptions
from agentguard.judge.endpoint import Endpoint
from agentguard.judge.wire import EndpointOptions
from agentguard.settings_judge import EndpointSettings

if TYPE_CHECKING:
    from agentguard.judge.chat import Schemata

KEY: Final = "AGENTGUARD_JUDGE_KEY"
"""Environment variable with an endpoint's key, where ``api_key_env`` names no other."""


def judge_from(settings: EndpointSettings, *, schemata: Schemata = ()) -> CachedJudge:
    """A chat judge that remembers its answers; nothing is connected here.

    Args:
        settings: where it is and how it is asked.
        schemata: texts of earlier failures to show after a run, or what finds them.

    Raises:
        ConfigError: the address or a limit is wrong, or the variable that is to hold the key is not set.
        MissingExtra: the openai package is not installed.
    """
    endpoint = _endpoint(settings)
    return CachedJudge(
        ChatJudge(endpoint, schemata=schemata, options=ChatOptions(deadline_s=settings.deadline_s))
    )


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


def _endpoint(settings: EndpointSettings) -> Endpoint:
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
