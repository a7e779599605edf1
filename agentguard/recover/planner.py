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
from agentguard.recover.base import Outcome, Plan, Recovery, Sample, Situation, Strategy, Tier
from agentguard.recover.reach import REWINDS, first_of_agents, reach

DIAGNOSIS = "diagnosis"
"""The trigger's name where no single detector set the recovery off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the planner came to.

    Attributes:
        plan: what to do; None if nothing is left to do.
        refused: strategy, rank of the hypothesis, and why it was passed over, in the order of trying.
    """

    plan: Plan | None
    refused: tuple[tuple[str, int, str], ...] = ()


class Planner:
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
        default: Sequence[Strategy],
        ladders: Mapping[str, Sequence[Strategy]] | None = None,
        *,
        top_k: int = 3,
    ) -> None:
        if top_k < 1:
            raise ConfigError(f"recovery: top_k is {top_k}, expected 1 or more")
        self.default = tuple(default)
        self.ladders = {name: tuple(rungs) for name, rungs in (ladders or {}).items()}
        self.top_k = top_k
        empty = [name for name, rungs in self.ladders.items() if not rungs]
        if empty or not self.default:
            raise ConfigError(f"recovery: the ladder of {', '.join(empty) or 'the default'} has no strategy")

    def ladder(self, trigger: str) -> tuple[Strategy, ...]:
        """The strategies for what ``trigger`` found, the mildest first."""
        return self.ladders.get(trigger, self.default)

    def named(self, trigger: str, strategy: str) -> Strategy | None:
        """The strategy of that name on the ladder of ``trigger``."""
        return next((one for one in self.ladder(trigger) if one.name == strategy), None)

    @property
    def models(self) -> frozenset[str]:
        """Names of all models that the strategies may ask for candidates."""
        every = [one for rungs in (self.default, *self.ladders.values()) for one in rungs]
        samples = (getattr(one, "sample", None) for one in every)
        return frozenset(name for one in samples if isinstance(one, Sample) for name in one.models)

    def acts_from(self, trigger: str) -> float:
        """Probability from which a rung of the ladder acts by its own word; 1 where none says so."""
        return min((acts_from(one) for one in self.ladder(trigger)), default=1.0)

    def plan(self, situation: Situation, trigger: str = DIAGNOSIS, *, below: float | None = None) -> Decision:
        """Choose a plan; nothing is spent yet.

        Args:
            situation: its ``rank`` is where to begin among the hypotheses.
            trigger: name of the detector whose ladder is taken.
            below: probability of what was found, where that lies below the policy's threshold: then only
                those rungs are taken that act from it on by their own word.
        """
        refused: list[tuple[str, int, str]] = []
        if not situation.diagnosis.hypotheses:
            return Decision(plan=None, refused=(("", 0, "the diagnosis names no step"),))
        for strategy in self.ladder(trigger):
            if below is not None and acts_from(strategy) > below:
                continue
            for rank in self._ranks(situation):
                plan, why = self._try(strategy, replace(situation, rank=rank), trigger)
                if plan is not None:
                    return Decision(plan=plan, refused=tuple(refused))
                refused.append((strategy.name, rank, why))
        return Decision(plan=None, refused=tuple(refused))

    def _ranks(self, situation: Situation) -> range:
        return range(situation.rank, min(len(situation.diagnosis.hypotheses), situation.rank + self.top_k))

    def _try(self, strategy: Strategy, situation: Situation, trigger: str) -> tuple[Plan | None, str]:
        plan = strategy.plan(situation)
        if plan is None:
            return None, "cannot help here, or the integration cannot do it"
        if _tried(situation.history, plan, trigger, times=getattr(strategy, "times", 1)):
            return None, "was tried and did not help"
        if _too_near(plan, situation):
            return None, "going back as far as that was in vain"
        if plan.tier in _LAST:
            return plan, ""
        refused = situation.account.why_not(**price(plan))
        return (plan, "") if refused is None else (None, f"the budget {refused!r} is spent")


_LAST = frozenset({Tier.HAND_OVER, Tier.STOP})
"""Rungs that cost the agent nothing: no budget may keep a run from being stopped."""


def acts_from(strategy: Strategy) -> float:
    """Probability from which a strategy acts even below the policy's threshold; 1 if it never does."""
    return float(getattr(strategy, "acts_from", 1.0))


def _too_near(plan: Plan, situation: Situation) -> bool:
    """Whether a rollback goes back no further than the last one, which was in vain, and could go further.

    The first of the hypotheses that are far enough is for the session to name; where it names none, each one
    counts as it comes.
    """
    steps = situation.run.steps
    back = reach(situation.history, len(steps), first=first_of_agents(steps))
    others = (len(steps) - one.step for one in situation.diagnosis.hypotheses)
    return plan.tier in REWINDS and plan.undone < back and any(undone >= back for undone in others)


def _tried(history: Sequence[Recovery], plan: Plan, trigger: str, *, times: int) -> bool:
    if not plan.undone and any(isinstance(action, Sample) for action in plan.actions):
        return any(one.plan.strategy == plan.strategy for one in _undecided(history, plan.step))
    return sum(in_vain(recovery, plan, trigger) for recovery in standing(history)) >= times


def _undecided(history: Sequence[Recovery], step: int) -> list[Recovery]:
    """The votes on the turn at ``step`` that came to nothing just now; a new turn may be voted on anew."""
    found: list[Recovery] = []
    for one in reversed(history):
        sampled = any(isinstance(action, Sample) for action in one.plan.actions)
        if not (sampled and one.outcome is Outcome.REFUTED and one.plan.step == step):
            break
        found.append(one)
    return found


def standing(history: Sequence[Recovery]) -> tuple[Recovery, ...]:
    """Recoveries at steps that were not made anew since: a later one that went back further ends them."""
    held: list[Recovery] = []
    for recovery in history:
        if recovery.plan.undone:
            held = [one for one in held if not one.plan.undone or one.plan.step <= recovery.plan.step]
        held.append(recovery)
    return tuple(held)


def in_vain(recovery: Recovery, plan: Plan, trigger: str) -> bool:
    """Whether ``plan`` does over again what ``recovery`` did without success, or has not shown yet.

    A nudge is one and the same wherever it points: who ignored one hint about a loop ignores the next.
    """
    if recovery.outcome is Outcome.CONFIRMED or recovery.plan.strategy != plan.strategy:
        return False
    if plan.tier in (Tier.NUDGE, Tier.RESTART):
        return recovery.trigger == trigger
    if plan.tier is Tier.REPAIR:
        return recovery.plan.actions == plan.actions
    return recovery.plan.step == plan.step and recovery.plan.tier == plan.tier


class Price(TypedDict, total=False):
    """What a plan takes from an account; see `Account.take`."""

    rollback_to: int
    nudge: bool
    samples: int
    repair: bool


def price(plan: Plan) -> Price:
    """What carrying out a plan takes from the account of its run."""
    if plan.tier in _LAST:
        return {}
    if plan.tier is Tier.RESTART:
        return {"rollback_to": 0}
    price = Price()
    if samples := sum(action.n - 1 for action in plan.actions if isinstance(action, Sample)):
        price["samples"] = samples
    if plan.undone:
        price["rollback_to"] = plan.step
    elif plan.tier is Tier.REPAIR:
        price["repair"] = True
    elif not samples:
        price["nudge"] = True
    return price
