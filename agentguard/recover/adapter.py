"""Adapter that completes a plug-in strategy with the members of `RecoveryStrategy` that it lacks."""

from __future__ import annotations

from agentguard.recover.actions import Sample
from agentguard.recover.base_strategy import BaseStrategy
from agentguard.recover.plan import RecoveryPlan
from agentguard.recover.strategy import RecoveryContext, RecoveryStrategy, SimpleStrategy
from agentguard.trajectory.model import Trajectory


class StrategyAdapter:
    """Complete strategy around a plug-in that has at least ``name`` and ``plan``.

    The defaults are those of `BaseStrategy`. A plug-in that has one of the optional members of
    `RecoveryStrategy` keeps it.
    """

    def __init__(self, strategy: SimpleStrategy) -> None:
        self.strategy = strategy
        self.name = strategy.name
        self.min_confidence: float = getattr(strategy, "min_confidence", BaseStrategy.min_confidence)
        self.max_attempts: int = getattr(strategy, "max_attempts", BaseStrategy.max_attempts)
        self.sample: Sample | None = getattr(strategy, "sample", None)
        self.repairs_calls: bool = getattr(strategy, "repairs_calls", False)
        self.retries_reads: bool = getattr(strategy, "retries_reads", False)
        self._accept = getattr(strategy, "accept", None)

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Call ``plan`` of the plug-in."""
        return self.strategy.plan(context)

    def accept(self, run: Trajectory) -> bool | str:
        """Call ``accept`` of the plug-in; return True if it does not have one."""
        if self._accept is None:
            return True
        accepted: bool | str = self._accept(run)
        return accepted


def adapt_strategy(strategy: RecoveryStrategy | SimpleStrategy) -> RecoveryStrategy:
    """Return a strategy with all members of `RecoveryStrategy`: ``strategy``, or an adapter around it."""
    if isinstance(strategy, BaseStrategy | StrategyAdapter):
        return strategy
    return StrategyAdapter(strategy)
