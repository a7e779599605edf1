"""Functions shared by the built-in strategies."""

from __future__ import annotations

from collections.abc import Mapping

from agentguard.errors import ConfigError
from agentguard.recover.actions import RecoveryAction
from agentguard.recover.plan import RecoveryPlan, RecoveryTier
from agentguard.recover.strategy import RecoveryContext


def build_plan(
    context: RecoveryContext, strategy: str, tier: RecoveryTier, *actions: RecoveryAction, undone: int = 0
) -> RecoveryPlan:
    """Build a plan for the hypothesis of the context."""
    held = context.hypothesis
    return RecoveryPlan(
        strategy=strategy,
        tier=tier,
        actions=actions,
        step=held.step,
        hypothesis=context.hypothesis_rank,
        codes=held.codes,
        reason=held.reason,
        evidence=held.evidence,
        undone=undone,
    )


def reject_unknown_options(strategy: str, unknown: Mapping[str, object]) -> None:
    """Raise ConfigError if the strategy got unknown options."""
    if unknown:
        raise ConfigError(f"strategy {strategy!r}: unknown option {', '.join(sorted(unknown))}")
