"""The planner: which strategy, against which hypothesis, within the budget.

A *ladder* is the policy's list of strategies for what one detector finds (``on_fail``). The planner takes the
lowest rung that can do something here, has not been tried in vain, and is within the budget. A rung that acts
on a step is tried on the next hypothesis before the next rung is: a located step is a hypothesis, and where
the first one fails the second often holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from agentguard.errors import ConfigError
from agentguard.recover.actions import Sample
from agentguard.recover.plan import Recovery, RecoveryOutcome, RecoveryPlan, RecoveryTier
from agentguard.recover.rollback_horizon import REWIND_TIERS, find_first_agent_step, rollback_horizon
from agentguard.recover.strategy import RecoveryContext, RecoveryStrategy

DIAGNOSIS_TRIGGER = "diagnosis"
"""The trigger's name where no single detector set the recovery off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDecision:
    """What the planner came to.

    Attributes:
        plan: what to do; None if nothing is left to do.
        refused: strategy, rank of the hypothesis, and why it was passed over, in the order of trying.
    """

    plan: RecoveryPlan | None
    rejections: tuple[tuple[str, int, str], ...] = ()


class RecoveryPlanner:
    """Chooses plans for one policy; holds no state of a run, so that one serves all.

    Args:
        ladders: detector name to its strategies, the mildest first.
        default: the ladder of all other detectors.
        top_k: how many hypotheses of a diagnosis may be acted on.

    Raises:
        ConfigError: a ladder is empty or ``top_k`` is below 1.
    """

    def __init__(
        self,
        default_escalation: Sequence[RecoveryStrategy],
        escalations: Mapping[str, Sequence[RecoveryStrategy]] | None = None,
        *,
        max_hypotheses: int = 3,
    ) -> None:
        if max_hypotheses < 1:
            raise ConfigError(f"recovery: top_k is {max_hypotheses}, expected 1 or more")
        self.default_escalation = tuple(default_escalation)
        self.escalations = {name: tuple(rungs) for name, rungs in (escalations or {}).items()}
        self.max_hypotheses = max_hypotheses
        empty = [name for name, rungs in self.escalations.items() if not rungs]
        if empty or not self.default_escalation:
            raise ConfigError(f"recovery: the ladder of {', '.join(empty) or 'the default'} has no strategy")

    def get_escalation(self, trigger: str) -> tuple[RecoveryStrategy, ...]:
        """The strategies for what ``trigger`` found, the mildest first."""
        return self.escalations.get(trigger, self.default_escalation)

    def find_strategy(self, trigger: str, strategy: str) -> RecoveryStrategy | None:
        """The strategy of that name on the ladder of ``trigger``."""
        return next((one for one in self.get_escalation(trigger) if one.name == strategy), None)

    @property
    def models(self) -> frozenset[str]:
        """Names of all models that the strategies may ask for candidates."""
        every = [one for rungs in (self.default_escalation, *self.escalations.values()) for one in rungs]
        samples = (one.sample for one in every)
        return frozenset(name for sample in samples if sample is not None for name in sample.models)

    def get_min_confidence(self, trigger: str) -> float:
        """Probability from which a rung of the ladder acts by its own word; 1 where none says so."""
        return min((one.min_confidence for one in self.get_escalation(trigger)), default=1.0)

    def plan(
        self,
        context: RecoveryContext,
        trigger: str = DIAGNOSIS_TRIGGER,
        *,
        trigger_probability: float | None = None,
    ) -> PlanDecision:
        """Choose a plan; nothing is spent yet.

        Args:
            situation: its ``rank`` is where to begin among the hypotheses.
            trigger: name of the detector whose ladder is taken.
            below: probability of what was found, where that lies below the policy's threshold: then only
                those rungs are taken that act from it on by their own word.
        """
        refused: list[tuple[str, int, str]] = []
        if not context.diagnosis.hypotheses:
            return PlanDecision(plan=None, rejections=(("", 0, "the diagnosis names no step"),))
        for strategy in self.get_escalation(trigger):
            if trigger_probability is not None and strategy.min_confidence > trigger_probability:
                continue
            for rank in self._list_ranks(context):
                plan, why = self._try(strategy, replace(context, hypothesis_rank=rank), trigger)
                if plan is not None:
                    return PlanDecision(plan=plan, rejections=tuple(refused))
                refused.append((strategy.name, rank, why))
        return PlanDecision(plan=None, rejections=tuple(refused))

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
            return None, "cannot help here, or the integration cannot do it"
        if _was_tried(context.past_recoveries, plan, trigger, max_attempts=strategy.max_attempts):
            return None, "was tried and did not help"
        if _is_too_near(plan, context):
            return None, "going back as far as that was in vain"
        if plan.tier in _TERMINAL_TIERS:
            return plan, ""
        refused = context.account.find_exceeded_limit(**compute_plan_cost(plan))
        return (plan, "") if refused is None else (None, f"the budget {refused!r} is spent")


_TERMINAL_TIERS = frozenset({RecoveryTier.HAND_OVER, RecoveryTier.STOP})
"""Rungs that cost the agent nothing: no budget may keep a run from being stopped."""


def _is_too_near(plan: RecoveryPlan, context: RecoveryContext) -> bool:
    """Whether a rollback goes back no further than the last one, which was in vain, and could go further.

    The first of the hypotheses that are far enough is for the session to name; where it names none, each one
    counts as it comes.
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
    """The votes on the turn at ``step`` that came to nothing just now; a new turn may be voted on anew."""
    found: list[Recovery] = []
    for one in reversed(past_recoveries):
        sampled = any(isinstance(action, Sample) for action in one.plan.actions)
        if not (sampled and one.outcome is RecoveryOutcome.REFUTED and one.plan.step == step):
            break
        found.append(one)
    return found


def select_standing(past_recoveries: Sequence[Recovery]) -> tuple[Recovery, ...]:
    """Recoveries at steps that were not made anew since: a later one that went back further ends them."""
    held: list[Recovery] = []
    for recovery in past_recoveries:
        if recovery.plan.undone:
            held = [one for one in held if not one.plan.undone or one.plan.step <= recovery.plan.step]
        held.append(recovery)
    return tuple(held)


def is_ineffective(recovery: Recovery, plan: RecoveryPlan, trigger: str) -> bool:
    """Whether ``plan`` does over again what ``recovery`` did without success, or has not shown yet.

    A nudge is one and the same wherever it points: who ignored one hint about a loop ignores the next.
    """
    if recovery.outcome is RecoveryOutcome.CONFIRMED or recovery.plan.strategy != plan.strategy:
        return False
    if plan.tier in (RecoveryTier.NUDGE, RecoveryTier.RESTART):
        return recovery.trigger == trigger
    if plan.tier is RecoveryTier.REPAIR:
        return recovery.plan.actions == plan.actions
    return recovery.plan.step == plan.step and recovery.plan.tier == plan.tier


class PlanCost(TypedDict, total=False):
    """What a plan takes from an account; see `Account.take`."""

    rollback_to: int
    nudge: bool
    samples: int
    repair: bool


def compute_plan_cost(plan: RecoveryPlan) -> PlanCost:
    """What carrying out a plan takes from the account of its run."""
    if plan.tier in _TERMINAL_TIERS:
        return {}
    if plan.tier is RecoveryTier.RESTART:
        return {"rollback_to": 0}
    price = PlanCost()
    if samples := sum(action.n - 1 for action in plan.actions if isinstance(action, Sample)):
        price["samples"] = samples
    if plan.undone:
        price["rollback_to"] = plan.step
    elif plan.tier is RecoveryTier.REPAIR:
        price["repair"] = True
    elif not samples:
        price["nudge"] = True
    return price
