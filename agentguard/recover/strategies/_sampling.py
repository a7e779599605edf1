"""What strategies that ask for several candidates of one turn have in common."""

from __future__ import annotations

from collections.abc import Iterable

from agentguard.errors import ConfigError
from agentguard.recover.actions import Rewind, Sample
from agentguard.recover.plan import RecoveryPlan, RecoveryTier
from agentguard.recover.strategies._plan import build_plan
from agentguard.recover.strategies.rollback import RollbackStrategy
from agentguard.recover.strategy import RecoveryContext

MAX_CANDIDATES = 15
"""Candidates of one turn at most: what lies above is a mistake, and costs as much."""


def build_sample_plan(context: RecoveryContext, strategy: str, sample: Sample) -> RecoveryPlan | None:
    """A plan that has candidates vote: on the turn that was proposed, else on the turn that replaces the
    step.

    None where the integration cannot ask for candidates, or cannot go back to the step.
    """
    if not context.capabilities.sample:
        return None
    if not context.is_committed and context.hypothesis.step == context.last_step:
        tier = RecoveryTier.SUBSTITUTE if sample.models else RecoveryTier.REJECT
        return build_plan(context, strategy, tier, sample)
    back = RollbackStrategy().plan(context)
    if back is None or not any(isinstance(action, Rewind) for action in back.actions):
        return None
    return build_plan(context, strategy, back.tier, *back.actions, sample, undone=back.undone)


def parse_count(strategy: str, option: str, value: object, min_value: int, max_value: int) -> int:
    """A whole number within bounds. Raises ConfigError that names strategy, option and bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not min_value <= value <= max_value:
        raise ConfigError(
            f"strategy {strategy!r}: {option} is {value!r}, expected {min_value} to {max_value}"
        )
    return value


def compute_quorum(strategy: str, n: int, quorum: int | None) -> int:
    """How many of ``n`` must agree: more than half of them, so that no two groups can.

    Raises:
        ConfigError: the quorum that was given is no majority, or more than there are.
    """
    least = n // 2 + 1
    return least if quorum is None else parse_count(strategy, "quorum", quorum, least, n)


def parse_names(strategy: str, option: str, value: Iterable[str]) -> tuple[str, ...]:
    """Texts as a tuple. Raises ConfigError if it is one text, or one of them is empty or no text."""
    made = () if isinstance(value, str) else tuple(value)
    if isinstance(value, str) or not all(isinstance(one, str) and one for one in made):
        raise ConfigError(f"strategy {strategy!r}: {option} is {value!r}, expected a list of texts")
    return made


__all__ = ["MAX_CANDIDATES", "build_sample_plan", "compute_quorum", "parse_count", "parse_names"]
