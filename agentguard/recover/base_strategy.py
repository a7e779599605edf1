"""Base class of the built-in strategies: the defaults of `RecoveryStrategy`."""

from __future__ import annotations

from typing import ClassVar

from agentguard.recover.actions import Sample
from agentguard.recover.plan import RecoveryPlan
from agentguard.recover.strategy import RecoveryContext
from agentguard.trajectory.model import Trajectory


class BaseStrategy:
    """Base of the built-in strategies; a plug-in need not derive from it.

    A subclass defines ``name`` and overrides `plan`. The other members are described in `RecoveryStrategy`.
    """

    name: ClassVar[str] = ""
    min_confidence: float = 1.0
    max_attempts: int = 1
    sample: Sample | None = None
    repairs_calls: bool = False
    retries_reads: bool = False

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Return no plan; see `RecoveryStrategy.plan`."""
        del context
        return None

    def accept(self, run: Trajectory) -> bool | str:
        """Accept the candidate; see `RecoveryStrategy.accept`."""
        del run
        return True
