"""The judge that a localizer's options name: an endpoint of a chat model, or one given in code."""

from __future__ import annotations

import os
from typing import Any, cast

from agentguard.errors import ConfigError
from agentguard.judge.base import Judge

KEY = "AGENTGUARD_JUDGE_KEY"
"""Environment variable with the endpoint's key, where ``api_key_env`` names no other."""


def judge_of(method: str, options: dict[str, Any]) -> Judge:
    """Take what names a judge out of a localizer's options, and make it.

    Args:
        method: name of the localizer, for messages.
        options: ``judge``, a judge; or ``base_url`` of an OpenAI-compatible endpoint with ``model``,
            ``api_key_env`` (the environment variable that holds the key), ``deadline_s``,
            ``context_tokens``, and ``swap``: ask each question in both orders of its options.

    Raises:
        ConfigError: neither is given, or an option is wrong.
        MissingExtra: the openai package is not installed.
    """
    judge, base_url = options.pop("judge", None), options.pop("base_url", None)
    swap = bool(options.pop("swap", False))
    if judge is not None:
        if not hasattr(judge, "decide"):
            raise ConfigError(f"localizer {method!r}: the judge has no decide()")
        return _asked_twice(judge) if swap else cast(Judge, judge)
    if not isinstance(base_url, str):
        raise ConfigError(
            f"localizer {method!r} asks a judge: give base_url of an OpenAI-compatible endpoint, e.g. "
            f"{{name: {method}, base_url: http://127.0.0.1:8000/v1}}"
        )
    return _asked_twice(_chat(base_url, options)) if swap else _chat(base_url, options)


def _asked_twice(judge: Judge) -> Judge:
    from agentguard.judge.variants import BothOrders

    return BothOrders(judge)


def _chat(base_url: str, options: dict[str, Any]) -> Judge:
    from agentguard.judge.cache import CachedJudge
    from agentguard.judge.chat import ChatJudge, ChatOptions
    from agentguard.judge.endpoint import Endpoint
    from agentguard.judge.wire import EndpointOptions

    variable, model = options.pop("api_key_env", KEY), options.pop("model", None)
    deadline_s, context = options.pop("deadline_s", 60.0), options.pop("context_tokens", None)
    endpoint = Endpoint(
        base_url,
        model=model,
        api_key=os.environ.get(variable),
        options=EndpointOptions(deadline_s=deadline_s, context_tokens=context),
    )
    return CachedJudge(ChatJudge(endpoint, options=ChatOptions(deadline_s=deadline_s)))
