"""Plans and options of the strategies that request several candidates of one turn."""

from __future__ import annotations

from collections.abc import Iterable

from agentguard.errors import ConfigError
from agentguard.recover.actions import Rewind, Sample
from agentguard.recover.plan import RecoveryPlan, RecoveryTier
from agentguard.recover.strategies._plan import build_plan
from agentguard.recover.strategies.rollback import RollbackStrategy
from agentguard.recover.strategy import RecoveryContext

MAX_CANDIDATES = 15
"""Maximum number of candidates of one turn; a limit on the cost of a wrong configuration."""


def build_sample_plan(context: RecoveryContext, strategy: str, sample: Sample) -> RecoveryPlan | None:
    """Return a plan with a vote on the proposed turn, or on the turn after a rollback to the step.

    Return None if the integration cannot request candidates or cannot roll back to the step.
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
    """Return a whole number within bounds. Raises ConfigError, which names strategy, option and bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not min_value <= value <= max_value:
        raise ConfigError(
            f"strategy {strategy!r}: {option} is {value!r}, expected {min_value} to {max_value}"
        )
    return value


def compute_quorum(strategy: str, n: int, quorum: int | None) -> int:
    """Return the number of ``n`` candidates that must agree: a majority, so that two groups cannot both win.

    Raises:
        ConfigError: the given quorum is not a majority, or exceeds ``n``.
    """
    least = n // 2 + 1
    return least if quorum is None else parse_count(strategy, "quorum", quorum, least, n)


def parse_names(strategy: str, option: str, value: Iterable[str]) -> tuple[str, ...]:
    """Return a list of texts as a tuple. Raises ConfigError if it is not a list of non-empty texts."""
    names = () if isinstance(value, str) else tuple(value)
    if isinstance(value, str) or not all(isinstance(one, str) and one for one in names):
        raise ConfigError(f"strategy {strategy!r}: {option} is {value!r}, expected a list of texts")
    return names
