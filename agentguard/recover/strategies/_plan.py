"""What plans of every strategy have in common."""

from __future__ import annotations

from collections.abc import Mapping

from agentguard.errors import ConfigError
from agentguard.recover.base import Action, Plan, Situation, Tier


def plan(situation: Situation, strategy: str, tier: Tier, *actions: Action, undone: int = 0) -> Plan:
    """A plan that acts on the situation's hypothesis."""
    held = situation.hypothesis
    return Plan(
        strategy=strategy,
        tier=tier,
        actions=actions,
        step=held.step,
        hypothesis=situation.rank,
        codes=held.codes,
        reason=held.reason,
        evidence=held.evidence,
        undone=undone,
    )


def reject(strategy: str, unknown: Mapping[str, object]) -> None:
    """Raise ConfigError if there are options that the strategy does not know."""
    if unknown:
        raise ConfigError(f"strategy {strategy!r}: unknown option {', '.join(sorted(unknown))}")
