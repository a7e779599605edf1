"""Escalation planner: choice of a strategy and a hypothesis within the budget.

An *escalation policy* lists the strategies for the findings of one detector (``on_fail``), the mildest first.
Each strategy is a *level*. The planner selects the first level that proposes a plan, has not failed before
and is within the budget. It tries a level on all hypotheses before it tries the next level: if the first
hypothesis is wrong, the second is often right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from agentguard.errors import ConfigError
from agentguard.recover.actions import Sample
from agentguard.recover.plan import Recovery, RecoveryOutcome, RecoveryPlan, RecoveryTier
from agentguard.recover.rollback_step import REWIND_TIERS, find_first_agent_step, rollback_horizon
from agentguard.recover.strategy import RecoveryContext, RecoveryStrategy

DIAGNOSIS_TRIGGER = "diagnosis"
"""Trigger name of a recovery that a diagnosis triggered, and no single detector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDecision:
    """Decision of the planner.

    Attributes:
        plan: the selected plan; None if no level remains.
        rejections: strategy, rank of the hypothesis and reason of each rejection, in the order of the
            attempts.
    """

    plan: RecoveryPlan | None
    rejections: tuple[tuple[str, int, str], ...] = ()


class EscalationPlanner:
    """Planner of recoveries. It has no state of a run, so one planner serves all runs.

    Args:
        default_escalation: escalation policy of all detectors that have none in ``escalations``.
        escalations: escalation policy of each detector by name, the mildest strategy first.
        max_hypotheses: maximum number of hypotheses of a diagnosis that the planner tries.

    Raises:
        ConfigError: an escalation policy is empty or ``max_hypotheses`` is below 1.
    """

    def __init__(
        self,
        default_escalation: Sequence[RecoveryStrategy],
        escalations: Mapping[str, Sequence[RecoveryStrategy]] | None = None,
        *,
        max_hypotheses: int = 3,
    ) -> None:
        if max_hypotheses < 1:
            raise ConfigError(f"recover: max_hypotheses is {max_hypotheses}, expected 1 or more")
        self.default_escalation = tuple(default_escalation)
        self.escalations = {name: tuple(levels) for name, levels in (escalations or {}).items()}
        self.max_hypotheses = max_hypotheses
        empty = [name for name, levels in self.escalations.items() if not levels]
        if empty or not self.default_escalation:
            raise ConfigError(f"recover: the escalation policy of {', '.join(empty) or 'all'} is empty")

    def get_escalation(self, trigger: str) -> tuple[RecoveryStrategy, ...]:
        """Return the strategies for findings of ``trigger``, the mildest first."""
        return self.escalations.get(trigger, self.default_escalation)

    def find_strategy(self, trigger: str, strategy: str) -> RecoveryStrategy | None:
        """Return the strategy with this name in the escalation policy of ``trigger``, if there is one."""
        return next((one for one in self.get_escalation(trigger) if one.name == strategy), None)

    @property
    def models(self) -> frozenset[str]:
        """Names of all models from which the strategies may request candidates."""
        policies = (self.default_escalation, *self.escalations.values())
        samples = (strategy.sample for policy in policies for strategy in policy)
        return frozenset(name for sample in samples if sample is not None for name in sample.models)

    def get_min_confidence(self, trigger: str) -> float:
        """Return the lowest ``min_confidence`` in the escalation policy of ``trigger``."""
        return min((one.min_confidence for one in self.get_escalation(trigger)), default=1.0)

    def plan(
        self,
        context: RecoveryContext,
        trigger: str = DIAGNOSIS_TRIGGER,
        *,
        trigger_probability: float | None = None,
        escalation: str | None = None,
    ) -> PlanDecision:
        """Choose a plan without spending any budget.

        Args:
            context: input of the strategies; its ``hypothesis_rank`` is the first hypothesis to try.
            trigger: name of the detector whose escalation policy is used.
            trigger_probability: probability of a finding below the policy's threshold. Then the planner only
                tries levels with a ``min_confidence`` of at most this value.
            escalation: name of the escalation policy; by default ``trigger``.
        """
        rejections: list[tuple[str, int, str]] = []
        if not context.diagnosis.hypotheses:
            return PlanDecision(plan=None, rejections=(("", 0, "the diagnosis names no step"),))
        for strategy in self.get_escalation(escalation or trigger):
            if trigger_probability is not None and strategy.min_confidence > trigger_probability:
                continue
            for rank in self._list_ranks(context):
                plan, reason = self._try(strategy, replace(context, hypothesis_rank=rank), trigger)
                if plan is not None:
                    return PlanDecision(plan=plan, rejections=tuple(rejections))
                rejections.append((strategy.name, rank, reason))
        return PlanDecision(plan=None, rejections=tuple(rejections))

    def _list_ranks(self, context: RecoveryContext) -> range:
        return range(
            context.hypothesis_rank,
            min(len(context.diagnosis.hypotheses), context.hypothesis_rank + self.max_hypotheses),
        )

    def _try(
        self, strategy: RecoveryStrategy, context: RecoveryContext, trigger: str
    ) -> tuple[RecoveryPlan | None, str]:
        plan = strategy.plan(context)
        if plan is None:
            return None, "has no plan for this failure, or the integration lacks a capability"
        if _was_tried(context.past_recoveries, plan, trigger, max_attempts=strategy.max_attempts):
            return None, "has been tried without success"
        if _is_too_near(plan, context):
            return None, "a rollback to that step did not help"
        if plan.tier in _TERMINAL_TIERS:
            return plan, ""
        limit = context.account.find_exceeded_limit(**compute_plan_cost(plan))
        if limit == "rollbacks_per_step" and plan.tier is RecoveryTier.REJECT and strategy.max_attempts > 1:
            limit = None
        return (plan, "") if limit is None else (None, f"would exceed the budget {limit!r}")


_TERMINAL_TIERS = frozenset({RecoveryTier.ESCALATE, RecoveryTier.STOP})
"""Tiers without a cost: an exhausted budget must not prevent an escalation or a stop."""


def _is_too_near(plan: RecoveryPlan, context: RecoveryContext) -> bool:
    """Return whether a rollback is shorter than the horizon and another hypothesis is beyond it.

    If no hypothesis is beyond the horizon, no rollback counts as too short.
    """
    steps = context.run.steps
    back = rollback_horizon(
        context.past_recoveries, len(steps), first_agent_step=find_first_agent_step(steps)
    )
    others = (len(steps) - one.step for one in context.diagnosis.hypotheses)
    return plan.tier in REWIND_TIERS and plan.undone < back and any(undone >= back for undone in others)


def _was_tried(
    past_recoveries: Sequence[Recovery], plan: RecoveryPlan, trigger: str, *, max_attempts: int
) -> bool:
    if not plan.undone and any(isinstance(action, Sample) for action in plan.actions):
        return any(
            one.plan.strategy == plan.strategy for one in _list_undecided_votes(past_recoveries, plan.step)
        )
    return (
        sum(is_ineffective(recovery, plan, trigger) for recovery in select_standing(past_recoveries))
        >= max_attempts
    )


def _list_undecided_votes(past_recoveries: Sequence[Recovery], step: int) -> list[Recovery]:
    """Return the latest consecutive votes on the turn at ``step`` that were undecided."""
    found: list[Recovery] = []
    for one in reversed(past_recoveries):
        sampled = any(isinstance(action, Sample) for action in one.plan.actions)
        if not (sampled and one.outcome is RecoveryOutcome.REFUTED and one.plan.step == step):
            break
        found.append(one)
    return found


def select_standing(past_recoveries: Sequence[Recovery]) -> tuple[Recovery, ...]:
    """Return the recoveries that no later rollback to an earlier step supersedes."""
    standing: list[Recovery] = []
    for recovery in past_recoveries:
        if recovery.plan.undone:
            standing = [one for one in standing if not one.plan.undone or one.plan.step <= recovery.plan.step]
        standing.append(recovery)
    return tuple(standing)


def is_ineffective(recovery: Recovery, plan: RecoveryPlan, trigger: str) -> bool:
    """Return whether ``plan`` repeats ``recovery``, which has not been confirmed.

    Hints and restarts for the same trigger count as repetitions at any step: an agent that ignored a hint
    about a loop ignores the next one, too.
    """
    if recovery.outcome is RecoveryOutcome.CONFIRMED or recovery.plan.strategy != plan.strategy:
        return False
    if plan.tier in (RecoveryTier.HINT, RecoveryTier.RESTART):
        return recovery.trigger == trigger
    if plan.tier is RecoveryTier.REPAIR:
        return recovery.plan.actions == plan.actions
    return recovery.plan.step == plan.step and recovery.plan.tier == plan.tier


class PlanCost(TypedDict, total=False):
    """Cost of a plan, as the arguments of `BudgetAccount.spend`."""

    rollback_to: int
    hint: bool
    samples: int
    repair: bool


def compute_plan_cost(plan: RecoveryPlan) -> PlanCost:
    """Return the cost of a plan; empty for an escalation or a stop."""
    if plan.tier in _TERMINAL_TIERS:
        return {}
    if plan.tier is RecoveryTier.RESTART:
        return {"rollback_to": 0}
    cost = PlanCost()
    if samples := sum(action.n - 1 for action in plan.actions if isinstance(action, Sample)):
        cost["samples"] = samples
    if plan.undone:
        cost["rollback_to"] = plan.step
    elif plan.tier is RecoveryTier.REPAIR:
        cost["repair"] = True
    elif not samples:
        cost["hint"] = True
    return cost
