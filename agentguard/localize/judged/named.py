"""The judge that a localizer's options name: an endpoint of a chat model, or one given in code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import ValidationError

from agentguard.errors import ConfigError
from agentguard.judge.base import Judge
from agentguard.settings import explain
from agentguard.settings_judge import EndpointSettings

if TYPE_CHECKING:
    from agentguard.judge.chat import Schemata

_READING: Final = ("all_at_once", "step_by_step", "binary_search", "structured", "constraints", "two_stage")
ASKING: Final = frozenset((*_READING, "schema", "fused"))
"""Localizers that ask the judge of a policy, where their own options name none."""

_ENDPOINT: Final = tuple(EndpointSettings.model_fields)


def judge_of(method: str, options: dict[str, Any], *, schemata: Schemata = ()) -> Judge:
    """Take what names a judge out of a localizer's options, and make it.

    Args:
        method: name of the localizer, for messages.
        options: ``judge``, a judge; or ``base_url`` of an OpenAI-compatible endpoint, or ``replicas``
            (several of them) and ``pool`` (`agentguard.settings_judge.EndpointSettings`), with ``model``,
            ``api_key_env`` (the environment variable that holds the key), ``deadline_s``,
            ``context_tokens``; and ``swap``: ask each question in both orders of its options.
        schemata: texts of earlier failures to show after a run, to a judge that is made here.

    Raises:
        ConfigError: neither is given, or an option is wrong.
        MissingExtra: the openai package is not installed.
    """
    judge, swap = options.pop("judge", None), bool(options.pop("swap", False))
    given = {name: options.pop(name) for name in _ENDPOINT if options.get(name) is not None}
    if judge is None:
        judge = _chat(method, given, schemata)
    elif not hasattr(judge, "decide"):
        raise ConfigError(f"localizer {method!r}: the judge has no decide()")
    return _asked_twice(judge) if swap else cast(Judge, judge)


def _asked_twice(judge: Judge) -> Judge:
    from agentguard.judge.variants import BothOrders

    return BothOrders(judge)


def _chat(method: str, given: dict[str, Any], schemata: Schemata) -> Judge:
    from agentguard.judge.configured import judge_from

    if not isinstance(given.get("base_url"), str) and not given.get("replicas"):
        raise ConfigError(
            f"localizer {method!r} asks a judge: give base_url of an OpenAI-compatible endpoint, e.g. "
            f"{{name: {method}, base_url: http://127.0.0.1:8000/v1}}, or the policy a judge"
        )
    try:
        settings = EndpointSettings.model_validate(given)
    except ValidationError as error:
        raise ConfigError(f"localizer {method!r}: {explain(error, EndpointSettings)}") from None
    return judge_from(settings, schemata=schemata)
