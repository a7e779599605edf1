"""Interface of recovery strategies: their context and registry, a base class, and an adapter for plug-ins.

A strategy does not call a framework. It reads a `RecoveryContext` and returns a `RecoveryPlan`, whose actions
the integration applies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.plugins import Registry
from agentguard.recover.actions import Sample
from agentguard.recover.budget import BudgetAccount
from agentguard.recover.capabilities import Capabilities
from agentguard.recover.effect_ledger import EffectLedger
from agentguard.recover.plan import Recovery, RecoveryPlan
from agentguard.trajectory.model import Trajectory

RepairFunction = Callable[[Trajectory, Hypothesis], tuple[str, str] | None]
"""Repair function of the user: its arguments are the run and the hypothesis.

The last step of the run may be uncommitted. The function returns a field of the hypothesis's step and the new
text, or None. `Repair` lists the fields.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryContext:
    """Input of a strategy.

    Attributes:
        run: the run so far, with its abandoned branches.
        diagnosis: diagnosis of the failure, with at least one hypothesis.
        capabilities: abilities of the integration.
        account: budget account of the run.
        ledger: effects of the tools.
        hypothesis_rank: rank of the hypothesis to correct, from 0.
        past_recoveries: recoveries of this run, the earliest first.
        is_committed: False if the tool calls of the last step have not run, so that it can be rejected.
        repair_function: the user's repair function, if any.
        restorable_steps: steps before which a state was saved that a fork can restore, the earliest first;
            None if every step has one.
    """

    run: Trajectory
    diagnosis: Diagnosis
    capabilities: Capabilities
    account: BudgetAccount
    ledger: EffectLedger
    hypothesis_rank: int = 0
    past_recoveries: tuple[Recovery, ...] = ()
    is_committed: bool = True
    repair_function: RepairFunction | None = None
    restorable_steps: tuple[int, ...] | None = None

    def find_restorable_step(self, step: int) -> int | None:
        """Return the nearest step at or before ``step`` whose state a fork can restore, if there is one."""
        if self.restorable_steps is None:
            return step
        return max((one for one in self.restorable_steps if one <= step), default=None)

    @property
    def hypothesis(self) -> Hypothesis:
        """Hypothesis to correct."""
        return self.diagnosis.hypotheses[self.hypothesis_rank]

    @property
    def last_step(self) -> int:
        """Index of the last step of the current branch."""
        return len(self.run.steps) - 1


class SimpleStrategy(Protocol):
    """Minimal plug-in strategy; `adapt_strategy` completes it to a `RecoveryStrategy`."""

    @property
    def name(self) -> str:
        """Name of the strategy in the registry and in escalation policies."""
        ...

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Return a plan; None if the strategy cannot help or the integration lacks a capability for it."""
        ...


class RecoveryStrategy(Protocol):
    """Strategy of recovery. `BaseStrategy` has defaults for all members but ``name`` and ``plan``."""

    @property
    def name(self) -> str:
        """Name of the strategy in the registry and in escalation policies."""
        ...

    @property
    def min_confidence(self) -> float:
        """Probability of a finding from which the strategy acts, even below the policy's threshold.

        With 1, the default, the policy's threshold alone decides.
        """
        ...

    @property
    def max_attempts(self) -> int:
        """Maximum number of times that the planner selects the same plan without success; 1 by default."""
        ...

    @property
    def sample(self) -> Sample | None:
        """Candidates that the plans request; None, the default, if the plans request none."""
        ...

    @property
    def repairs_calls(self) -> bool:
        """True if the candidates of a vote are repaired before the comparison; False by default."""
        ...

    @property
    def retries_reads(self) -> bool:
        """True if the guard retries failed calls of read-only tools once; False by default."""
        ...

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Return a plan; None if the strategy cannot help or the integration lacks a capability for it."""
        ...

    def accept(self, run: Trajectory) -> bool | str:
        """Return True if the last step of ``run``, a candidate, is acceptable, else False or the reason.

        The default accepts all candidates.
        """
        ...


class RecoveryStrategyFactory(Protocol):
    """Factory that builds a strategy from its options."""

    def __call__(self, **options: Any) -> RecoveryStrategy | SimpleStrategy:
        """Build the strategy. Raises ConfigError if an option does not exist or is out of its range."""
        ...


def strategies() -> Registry[RecoveryStrategyFactory]:
    """Return the registry of strategies: the built-in ones and installed plug-ins."""
    return _REGISTRY


def _build_registry() -> Registry[RecoveryStrategyFactory]:
    # At module level, this import would be a cycle: the strategies import this module.
    from agentguard.recover.strategies import BUILTIN_STRATEGIES, STRATEGY_ALIASES

    return Registry(
        "strategy", group="agentguard.strategies", builtin=BUILTIN_STRATEGIES, aliases=STRATEGY_ALIASES
    )


_REGISTRY = _build_registry()


class BaseStrategy:
    """Base class of the built-in strategies; optional for plug-ins.

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


class StrategyAdapter:
    """Complete strategy around a `SimpleStrategy`; it keeps those optional members that the plug-in has.

    The defaults of the other members are those of `BaseStrategy`.
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
