"""What strategies that ask for several candidates of one turn have in common."""

from __future__ import annotations

from collections.abc import Iterable

from agentguard.errors import ConfigError
from agentguard.recover.base import Plan, Rewind, Sample, Situation, Tier
from agentguard.recover.strategies._plan import plan
from agentguard.recover.strategies.rollback import Rollback

MOST = 15
"""Candidates of one turn at most: what lies above is a mistake, and costs as much."""


def sampled(situation: Situation, strategy: str, sample: Sample) -> Plan | None:
    """A plan that has candidates vote: on the turn that was proposed, else on the turn that replaces the
    step.

    None where the integration cannot ask for candidates, or cannot go back to the step.
    """
    if not situation.can.sample:
        return None
    if not situation.committed and situation.hypothesis.step == situation.last:
        tier = Tier.SUBSTITUTE if sample.models else Tier.REJECT
        return plan(situation, strategy, tier, sample)
    back = Rollback().plan(situation)
    if back is None or not any(isinstance(action, Rewind) for action in back.actions):
        return None
    return plan(situation, strategy, back.tier, *back.actions, sample, undone=back.undone)


def whole(strategy: str, option: str, value: object, low: int, high: int) -> int:
    """A whole number within bounds. Raises ConfigError that names strategy, option and bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"strategy {strategy!r}: {option} is {value!r}, expected {low} to {high}")
    return value


def majority(strategy: str, n: int, quorum: int | None) -> int:
    """How many of ``n`` must agree: more than half of them, so that no two groups can.

    Raises:
        ConfigError: the quorum that was given is no majority, or more than there are.
    """
    least = n // 2 + 1
    return least if quorum is None else whole(strategy, "quorum", quorum, least, n)


def names(strategy: str, option: str, value: Iterable[str]) -> tuple[str, ...]:
    """Texts as a tuple. Raises ConfigError if it is one text, or one of them is empty or no text."""
    made = () if isinstance(value, str) else tuple(value)
    if isinstance(value, str) or not all(isinstance(one, str) and one for one in made):
        raise ConfigError(f"strategy {strategy!r}: {option} is {value!r}, expected a list of texts")
    return made


__all__ = ["MOST", "majority", "names", "sampled", "whole"]
