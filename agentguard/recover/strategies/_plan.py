"""Construction of plans, and check of options, for the built-in strategies."""

from __future__ import annotations

from collections.abc import Mapping

from agentguard.errors import ConfigError
from agentguard.recover.actions import RecoveryAction
from agentguard.recover.plan import RecoveryPlan, RecoveryTier
from agentguard.recover.strategy import RecoveryContext


def build_plan(
    context: RecoveryContext, strategy: str, tier: RecoveryTier, *actions: RecoveryAction, undone: int = 0
) -> RecoveryPlan:
    """Return a plan with the step, codes, reason and evidence of the hypothesis of the context.

    Args:
        context: input of the strategy.
        strategy: name of the strategy.
        tier: severity of the plan.
        actions: actions of the plan, in order.
        undone: number of steps of the current branch that the plan discards.
    """
    hypothesis = context.hypothesis
    return RecoveryPlan(
        strategy=strategy,
        tier=tier,
        actions=actions,
        step=hypothesis.step,
        hypothesis=context.hypothesis_rank,
        codes=hypothesis.codes,
        reason=hypothesis.reason,
        evidence=hypothesis.evidence,
        undone=undone,
    )


def reject_unknown_options(strategy: str, unknown: Mapping[str, object]) -> None:
    """Raise ConfigError if there are unknown options."""
    if unknown:
        raise ConfigError(f"strategy {strategy!r}: unknown option {', '.join(sorted(unknown))}")
