"""From a policy, or what is given in code, to the parts of a guard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from agentguard.detect.base import detectors
from agentguard.errors import AgentGuardError, ConfigError
from agentguard.judge.safety import (
    WORST_FIRST,
    ResponseSafety,
    SafetyAction,
    SafetyRules,
    trigger_of,
)
from agentguard.localize.base import Localizer, localizers
from agentguard.recover.budget import Budget
from agentguard.recover.effects import EffectClass, ToolEffect, Undo
from agentguard.recover.policy import DEFAULT_LADDER, Recover
from agentguard.recover.protect import Protect
from agentguard.recover.verify import Verification
from agentguard.settings import Policy

if TYPE_CHECKING:
    from agentguard.judge.base import Judge

DetectorOptions = Mapping[str, Mapping[str, Any] | None]


def localizer_named(name: str, options: Mapping[str, Any]) -> Localizer:
    """Make a localizer that needs no training of its own. Raises ConfigError or UnknownPlugin."""
    made = localizers().get(name)(**options)
    if not hasattr(made, "locate"):
        raise ConfigError(f"localizer {name!r} learns from annotated runs: fit it first, or name another")
    return cast(Localizer, made)


def localizer_of(policy: Policy, judge: Judge | None) -> Localizer:
    """The policy's localizer; one that asks a judge, and names none itself, asks the policy's."""
    from agentguard.localize.judged.named import ASKING

    settings = policy.chosen_localizer()
    options = settings.options()
    own = {"judge", "base_url", "replicas"} & set(options)
    if judge is not None and policy.judge is not None and settings.name in ASKING and not own:
        options = {"judge": judge, "swap": policy.judge.asks_twice, **options}
    return localizer_named(settings.name, options)


def judge_of(policy: Policy) -> Judge | None:
    """The policy's judge, if it has one; nothing is connected here."""
    if policy.judge is None:
        return None
    from agentguard.judge.configured import judge_from

    return judge_from(policy.judge)


def safety_of(policy: Policy, judge: Judge | None) -> ResponseSafety | None:
    """What the policy says of response safety. Raises ConfigError where one judge alone would decide."""
    given = policy.safety
    if given is None or judge is None or policy.judge is None:
        return None
    from agentguard.judge.configured import judge_from

    tiers = {tier: getattr(given, tier.value) for tier in WORST_FIRST}
    rules = SafetyRules(
        thresholds={tier: one.threshold for tier, one in tiers.items()},
        actions={tier: SafetyAction(one.action) for tier, one in tiers.items() if one.action is not None},
        unknown=SafetyAction(given.unknown),
    )
    second = None if policy.judge.second is None else judge_from(policy.judge.second)
    return ResponseSafety(judge, second=second, rules=rules, alone=given.alone)


def detectors_of(policy: Policy) -> dict[str, Mapping[str, Any]] | None:
    """The detectors a policy asks for: all but those switched off, or just those in ``only``."""
    if not policy.detectors and policy.only is None:
        return None
    names = detectors().names() if policy.only is None else policy.only
    off = {name for name, options in policy.detectors.items() if options is False}
    unknown = set(policy.detectors) - set(detectors().names())
    for name in sorted(unknown):
        detectors().get(name)  # raises UnknownPlugin with the names there are
    return {name: policy.options_of(name) for name in names if name not in off}


def recover_of(policy: Policy) -> Recover:
    """What the policy says of recovery."""
    given = policy.recover
    safety = {} if policy.safety is None else policy.safety.ladders()
    return Recover(
        on_fail=DEFAULT_LADDER if given.on_fail is None else given.on_fail,
        ladders=policy.ladders() | {trigger_of(SafetyAction(name)): rungs for name, rungs in safety.items()},
        budget=Budget(**policy.budgets.model_dump()),
        verification=Verification(window=given.window, threshold=given.threshold),
        threshold=given.threshold,
        top_k=given.top_k,
        on_error=policy.on_detector_error,
        protect=None if given.protect is None else Protect(**given.protect.model_dump()),
    )


def declared(*, effect: str, idempotent: bool, key: Sequence[str], undo: Undo | None = None) -> ToolEffect:
    """What a tool does to the world. Raises ConfigError on an effect that there is none of."""
    if effect not in set(EffectClass):
        raise ConfigError(f"tool: effect is {effect!r}, expected one of {', '.join(EffectClass)}")
    return ToolEffect(effect=EffectClass(effect), idempotent=idempotent, undo=undo, key=tuple(key))


def specs(given: DetectorOptions | None) -> dict[str, Mapping[str, Any]] | None:
    """Detectors with their options; each is made once, so that a wrong option is an error now."""
    if given is None:
        return None
    held = {name: dict(options or {}) for name, options in given.items()}
    for name, options in held.items():
        try:
            detectors().get(name)(**options)
        except AgentGuardError:
            raise
        except TypeError as error:
            raise ConfigError(f"detector {name!r}: {error}") from None
    return cast("dict[str, Mapping[str, Any]]", held)
