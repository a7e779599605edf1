"""Vote on one turn: its candidates, their checks, and the record of its outcome."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentguard.detect.base import Finding, most_severe
from agentguard.recover.actions import Sample, SampleVariant
from agentguard.recover.call_repair import apply_repairs, repair_turn
from agentguard.recover.plan import RecoveryOutcome, RecoveryPlan
from agentguard.recover.vote_tally import VoteCandidate, VoteTally
from agentguard.runtime.effect_gate import SCHEMA_DETECTOR
from agentguard.runtime.run_state import RunState
from agentguard.trajectory.model import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResult:
    """Result of one round of a vote.

    Attributes:
        variants: variants for which to request further candidates. If there are any, the vote is undecided
            and the other fields have no meaning.
        turn: the turn with which the run continues; None if there is a plan.
        candidate_index: index of that turn among the candidates. Index 0 is the proposed turn.
        plan: the plan to apply because the candidates did not agree, as from `Session.propose`.
    """

    variants: tuple[SampleVariant, ...] = ()
    turn: Step | None = None
    candidate_index: int = 0
    plan: RecoveryPlan | None = None


@dataclass(slots=True, kw_only=True)
class OpenVote:
    """Undecided vote.

    Attributes:
        turn: the proposed turn.
        trigger: finding that triggered the vote.
        plan: plan with the vote.
        sample: action of the plan.
        recovery_index: index of the recovery in `RunState.recoveries`.
        candidates: candidates so far; the first one is the proposed turn.
    """

    turn: Step
    trigger: Finding
    plan: RecoveryPlan
    sample: Sample
    recovery_index: int
    candidates: list[VoteCandidate]


def evaluate_candidate(
    state: RunState, turn: Step | None, trigger: Finding, plan: RecoveryPlan
) -> VoteCandidate:
    """Return a candidate of a vote; a finding or the strategy's acceptance test may reject it.

    Args:
        state: state of the run.
        turn: turn of the candidate; None if the model request failed.
        trigger: finding that triggered the vote.
        plan: plan with the vote.
    """
    if turn is None:
        return VoteCandidate(turn=None, rejection_reason="the request to the model failed")
    turn = _repair_candidate(state, replace(turn, index=len(state)))
    found = state.check_proposed(turn)
    finding = most_severe(found, state.config.finding_threshold)
    if finding is not None:
        return VoteCandidate(turn=turn, rejection_reason=finding.message or finding.detector)
    strategy = state.config.planner.find_strategy(trigger.detector, plan.strategy)
    if strategy is None:
        return VoteCandidate(turn=turn)
    run = state.run
    verdict = state.run_safely(strategy.accept, replace(run, steps=(*run.steps, turn)))
    default_reason = "the acceptance test refused it" if verdict in (False, None) else ""
    return VoteCandidate(turn=turn, rejection_reason=verdict if isinstance(verdict, str) else default_reason)


def _repair_candidate(state: RunState, turn: Step) -> Step:
    """Return the turn with its unambiguous errors repaired, if the policy repairs calls.

    Without the repair, equal calls in different forms would not count as agreement.
    """
    strategy = state.config.planner.find_strategy(SCHEMA_DETECTOR, "roll_forward")
    if not state.capabilities.repair or strategy is None or not strategy.repairs_calls:
        return turn
    run = state.run
    repaired = state.run_safely(repair_turn, turn, run)
    return turn if repaired is None else apply_repairs(turn, repaired[0])


def record_vote(state: RunState, vote: OpenVote, tally: VoteTally) -> None:
    """Record the cost of the vote, and the rejected candidates as abandoned branches."""
    requests = len(vote.candidates) - 1
    accepted = 0 if tally.winner is None else tally.winner
    others = [(i, one.turn) for i, one in enumerate(vote.candidates) if i != accepted and one.turn]
    used = [turn.usage for _, turn in others if turn.usage is not None]
    tokens = sum((usage.prompt_tokens or 0) + (usage.completion_tokens or 0) for usage in used)
    state.account.charge(tokens=tokens, calls=requests, samples=requests)
    for index, turn in others:
        reason = vote.candidates[index].rejection_reason or "the vote did not select it"
        state.recorder.add(replace(turn, index=vote.turn.index))
        state.recorder.fork(vote.turn.index, reason=f"{vote.plan.strategy}: {reason}")
    cost = {
        **state.recoveries[vote.recovery_index].cost,
        "tokens": float(tokens),
        "calls": float(requests),
        "candidates": float(len(vote.candidates)),
        "votes": float(tally.votes),
    }
    outcome = RecoveryOutcome.REFUTED if tally.winner is None else RecoveryOutcome.PENDING
    spent = state.account.usage
    recovery = replace(state.recoveries[vote.recovery_index], cost=cost, outcome=outcome, spent=spent)
    state.update_recovery(vote.recovery_index, recovery)


def find_sample(plan: RecoveryPlan | None) -> Sample | None:
    """Return the action of a plan that requests candidates, if it has one."""
    actions = () if plan is None else plan.actions
    return next((action for action in actions if isinstance(action, Sample)), None)
