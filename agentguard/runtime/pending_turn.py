"""Evaluation of a turn before its tools run: acceptance, rejection, repair, or a vote.

The module is a part of `agentguard.runtime.session.Session`. The session holds its lock around each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentguard.detect.base import Finding, most_severe
from agentguard.errors import RecoveryError
from agentguard.recover.actions import Escalate, Reject, Repair, SendMessage, Stop
from agentguard.recover.agent_messages import format_repaired_call
from agentguard.recover.call_repair import apply_repairs, describe_repair, diff_calls
from agentguard.recover.escalation_planner import compute_plan_cost
from agentguard.recover.plan import RecoveryPlan, RecoveryTier
from agentguard.recover.recovery_policy import EFFECT_TRIGGER
from agentguard.recover.selective_redundancy import REDUNDANCY_TRIGGER, build_redundancy_finding
from agentguard.recover.vote_tally import VoteCandidate, VoteTally, count_votes
from agentguard.runtime.effect_gate import EffectGate, TurnApprovals
from agentguard.runtime.live_diagnosis import build_live_diagnosis, select_plan, to_hypothesis
from agentguard.runtime.run_state import RunState
from agentguard.runtime.turn_vote import (
    OpenVote,
    VoteResult,
    evaluate_candidate,
    find_sample,
    record_vote,
)
from agentguard.trajectory.model import Source, Step

_DISAGREEMENT_CORRECTION = (
    "Independent answers to this step did not agree. Check each argument against the task and the earlier "
    "results. If a value is not known, look it up before you act."
)


class PendingTurn:
    """Uncommitted turn of one session."""

    def __init__(self) -> None:
        self._open_vote: OpenVote | None = None
        self._scheduled_vote: tuple[RecoveryPlan, Finding] | None = None
        self._expected_signature: tuple[Any, ...] = ()
        self._annotations: dict[str, Any] = {}
        self._repair_messages: list[str] = []
        self._unsent_messages: list[str] = []
        self._effect_gate = EffectGate()
        self.approvals = TurnApprovals()
        """Decisions of a person on refused turns."""
        self.uncertainty = 0.0
        """Highest probability of a finding on the last step; 0 if there is no finding."""
        self.skipped_votes = 0
        """Number of due votes that were skipped, for example because the budget was exhausted."""

    def evaluate(self, state: RunState, turn: Step) -> RecoveryPlan | None:
        """Implement `Session.propose`; the turn has its step index."""
        self._open_vote = None
        if _compute_signature(turn) != self._expected_signature:
            self._reset_annotations()
        found = state.check_proposed(turn)
        if self.approvals.is_approved(turn):
            return None
        due, self._scheduled_vote = self._scheduled_vote, None
        if due is not None and (plan := self._start_scheduled_vote(state, turn, *due)) is not None:
            return plan
        trigger = most_severe(found, state.config.finding_threshold)
        plan = (
            self._repair_below_threshold(state, turn, found)
            if trigger is None
            else self._plan_response(state, turn, trigger)
        )
        plan = plan or self._refuse_effect(state, turn, found)
        if plan is not None or trigger is not None:
            return plan
        return self._start_redundancy_vote(state, turn, found)

    def refuse(self, state: RunState, turn: Step, trigger: Finding) -> RecoveryPlan | None:
        """Plan a response that prevents the calls of an accepted turn; None for approved calls."""
        if self.approvals.is_approved(turn):
            return None
        state.findings.append(trigger)
        return self._plan_response(state, turn, trigger, escalation=EFFECT_TRIGGER)

    def count_votes(
        self, state: RunState, plan: RecoveryPlan, candidates: Sequence[Step | None]
    ) -> VoteResult:
        """Implement `Session.count_votes`."""
        vote = self._open_vote
        if vote is None or vote.plan is not plan:
            raise RecoveryError("count_votes: the plan has no open vote; propose the turn first")
        for one in candidates[len(vote.candidates) :]:
            vote.candidates.append(evaluate_candidate(state, one, vote.trigger, vote.plan))
        tally = count_votes(vote.candidates, vote.sample)
        if tally.additional_candidates:
            begin = len(vote.candidates) - 1
            return VoteResult(
                variants=vote.sample.build_variants()[begin : begin + tally.additional_candidates]
            )
        self._open_vote = None
        record_vote(state, vote, tally)
        if tally.winner is None:
            return self._resolve_undecided(state, vote, tally, candidates)
        return self._accept_candidate(vote, tally, tally.winner, candidates[tally.winner])

    def schedule_vote(self, plan: RecoveryPlan, trigger: Finding) -> None:
        """Schedule a vote on the next turn, after a rollback."""
        self._scheduled_vote = (plan, trigger)

    def take_annotations(self, turn: Step) -> dict[str, Any]:
        """Return and clear the annotations of the turn that is committed now.

        Queue the turn's repair messages for the next boundary.
        """
        if turn.source is not Source.AGENT:
            return {}
        self.approvals.record_commit(turn)
        annotations, self._annotations = self._annotations, {}
        self._unsent_messages += self._repair_messages
        self._repair_messages, self._expected_signature = [], ()
        return annotations

    def queue_message(self, text: str) -> None:
        """Queue a message to the agent for the next boundary."""
        self._unsent_messages.append(text)

    def attach_messages(self, state: RunState, plan: RecoveryPlan | None) -> RecoveryPlan | None:
        """Return the plan with the queued messages in front; without a plan, return one that only sends them.

        Drop the messages if the plan rolls back steps.
        """
        texts, self._unsent_messages = self._unsent_messages, []
        if not texts or (plan is not None and plan.undone):  # the rollback also discards the repaired steps
            return plan
        messages = tuple(SendMessage(text=text) for text in texts)
        state.queue_messages(texts)
        if plan is not None:
            return replace(plan, actions=(*messages, *plan.actions))
        step = max(0, len(state) - 1)
        reason = "message to the agent about a repair"
        return RecoveryPlan(
            strategy="roll_forward", tier=RecoveryTier.REPAIR, actions=messages, step=step, reason=reason
        )

    def _reset_annotations(self) -> None:
        self._expected_signature, self._annotations, self._repair_messages = (), {}, []

    def _repair_below_threshold(
        self, state: RunState, turn: Step, findings: Sequence[Finding]
    ) -> RecoveryPlan | None:
        """Plan a response to a finding below the policy's threshold, if an escalation level permits that."""
        planner = state.config.planner
        eligible = [one for one in findings if planner.get_min_confidence(one.detector) <= one.probability]
        trigger = max(eligible, key=lambda one: one.probability, default=None)
        return (
            None
            if trigger is None
            else self._plan_response(state, turn, trigger, trigger_probability=trigger.probability)
        )

    def _refuse_effect(self, state: RunState, turn: Step, findings: Sequence[Finding]) -> RecoveryPlan | None:
        """Plan a response that prevents the calls, if the effect gate refuses them."""
        is_denied = self.approvals.is_denied(turn)
        decision = self._effect_gate.decide(state, turn, findings, is_denied=is_denied)
        if decision is None:
            return None
        trigger, escalation = decision
        plan = self._plan_response(state, turn, trigger, escalation=escalation)
        if plan is not None:
            self._effect_gate.record_refusal(state, turn, trigger)
        return plan

    def _start_redundancy_vote(
        self, state: RunState, turn: Step, findings: Sequence[Finding]
    ) -> RecoveryPlan | None:
        """Start a vote if selective redundancy covers the turn, although no finding triggers a recovery."""
        redundancy = state.config.redundancy
        if redundancy is None or not state.capabilities.sample:
            return None
        uncertainty = max([self.uncertainty, *(one.probability for one in findings)])
        if redundancy.ask_localizer:
            uncertainty = max(uncertainty, state.run_safely(_estimate_failure, state, turn) or 0.0)
        reason = redundancy.explain(turn, state.ledger, uncertainty)
        if reason is None:
            return None
        trigger = build_redundancy_finding(turn, reason)
        plan = state.run_safely(_build_plan, state, turn, trigger)
        sample = find_sample(plan)
        if plan is None or sample is None:
            self.skipped_votes += 1
            return None
        first = evaluate_candidate(state, turn, trigger, plan)
        if count_votes([first], sample).winner == 0:
            return None  # the acceptance test of a recovery block accepted the primary
        return self._start_vote(state, turn, plan, trigger, first)

    def _plan_response(
        self,
        state: RunState,
        turn: Step,
        trigger: Finding,
        *,
        trigger_probability: float | None = None,
        escalation: str | None = None,
    ) -> RecoveryPlan | None:
        """Return the plan for a finding on a turn; None if no plan applies before the tools run."""
        plan = state.run_safely(_build_plan, state, turn, trigger, trigger_probability, escalation)
        if plan is None:
            return None
        if any(isinstance(action, Repair) for action in plan.actions):
            return self._apply_repair(state, turn, plan, trigger)
        if find_sample(plan) is not None and not plan.undone:
            return self._start_vote(state, turn, plan, trigger)
        if not any(isinstance(action, Reject | Escalate | Stop) for action in plan.actions):
            return None  # the next boundary handles the finding, after the tools have run
        self._reset_annotations()
        state.account.spend(**compute_plan_cost(plan))
        state.record_recovery(plan, trigger.detector, discarded_steps=(turn,))
        state.recorder.add(state.annotate_messages(turn))
        state.recorder.fork(turn.index, reason=plan.reason)
        state.apply_messages(plan)
        if any(isinstance(action, Escalate) for action in plan.actions):
            self.approvals.record_question(turn)
        return plan

    def _apply_repair(
        self, state: RunState, turn: Step, plan: RecoveryPlan, trigger: Finding
    ) -> RecoveryPlan:
        """Record the repair of a turn; the commit of the turn queues the message to the agent."""
        repairs = [action for action in plan.actions if isinstance(action, Repair)]
        state.account.spend(**compute_plan_cost(plan))
        state.record_recovery(plan, trigger.detector, discarded_steps=())
        self._expected_signature = _compute_signature(apply_repairs(turn, repairs))
        self._annotations.setdefault("repaired", []).extend(describe_repair(turn, one) for one in repairs)
        self._repair_messages += [action.text for action in plan.actions if isinstance(action, SendMessage)]
        return plan

    def _start_vote(
        self,
        state: RunState,
        turn: Step,
        plan: RecoveryPlan,
        trigger: Finding,
        first_candidate: VoteCandidate | None = None,
    ) -> RecoveryPlan:
        sample = find_sample(plan)
        assert sample is not None
        state.account.spend(**compute_plan_cost(plan))
        state.record_recovery(plan, trigger.detector, discarded_steps=())
        self._open_vote = OpenVote(
            turn=turn,
            trigger=trigger,
            plan=plan,
            sample=sample,
            recovery_index=len(state.recoveries) - 1,
            candidates=[
                evaluate_candidate(state, turn, trigger, plan) if first_candidate is None else first_candidate
            ],
        )
        return plan

    def _start_scheduled_vote(
        self, state: RunState, turn: Step, plan: RecoveryPlan, trigger: Finding
    ) -> RecoveryPlan | None:
        """Start the vote on the turn after a rollback; None if the budget does not permit it."""
        sample = find_sample(plan)
        if sample is None or state.account.find_exceeded_limit(samples=sample.n - 1) is not None:
            self.skipped_votes += 1
            return None
        tier = RecoveryTier.SUBSTITUTE if sample.models else RecoveryTier.REJECT
        vote_plan = replace(plan, tier=tier, actions=(sample,), step=turn.index, undone=0)
        return self._start_vote(state, turn, vote_plan, replace(trigger, step=turn.index))

    def _accept_candidate(
        self, vote: OpenVote, tally: VoteTally, candidate_index: int, original: Step | None
    ) -> VoteResult:
        """Accept a candidate; ``original`` is the turn as its model returned it, before repairs."""
        turn = vote.candidates[candidate_index].turn or vote.turn
        if candidate_index:
            self._reset_annotations()  # they describe the proposed turn, not this candidate
        self._expected_signature = _compute_signature(turn)
        self._annotations["elected"] = {
            "strategy": vote.plan.strategy,
            "candidates": len(vote.candidates),
            "votes": tally.votes,
            "taken": candidate_index,
            "reason": tally.reason,
        }
        if original is not None and (changes := diff_calls(original, turn)):
            self._annotations.setdefault("repaired", []).extend(changes)
            description = "; ".join(f"{one['original']} was changed to {one['repaired']}" for one in changes)
            self._repair_messages.append(format_repaired_call(description))
        return VoteResult(turn=turn, candidate_index=candidate_index)

    def _resolve_undecided(
        self, state: RunState, vote: OpenVote, tally: VoteTally, candidates: Sequence[Step | None]
    ) -> VoteResult:
        """Plan the next escalation level for a failed vote; if there is no plan, accept a candidate.

        Under selective redundancy this is the leading candidate, otherwise the proposed turn.
        """
        trigger = vote.trigger
        if trigger.detector == REDUNDANCY_TRIGGER:
            trigger = replace(
                trigger, message=f"{trigger.message} {tally.reason}.", correction=_DISAGREEMENT_CORRECTION
            )
        plan = self._plan_response(state, vote.turn, trigger)
        if plan is not None:
            return VoteResult(plan=plan)
        is_redundancy = vote.trigger.detector == REDUNDANCY_TRIGGER
        index = tally.leader if is_redundancy and tally.leader is not None else 0
        return self._accept_candidate(vote, tally, index, candidates[index])


def _estimate_failure(state: RunState, turn: Step) -> float:
    if state.config.localizer is None:
        return 0.0
    run = state.run
    with_turn = replace(run, steps=(*run.steps, turn))
    return state.config.localizer.locate(with_turn, state.findings).probability


def _build_plan(
    state: RunState,
    turn: Step,
    trigger: Finding,
    trigger_probability: float | None = None,
    escalation: str | None = None,
) -> RecoveryPlan | None:
    run = state.run
    with_turn = replace(run, steps=(*run.steps, turn))
    diagnosis = build_live_diagnosis(run.id, (to_hypothesis(trigger, turn.agent),), state.findings)
    return select_plan(
        state,
        diagnosis,
        with_turn,
        trigger.detector,
        is_committed=False,
        trigger_probability=trigger_probability,
        escalation=escalation,
    )


def _compute_signature(turn: Step) -> tuple[Any, ...]:
    """Return the parts of a turn that must not change between a repair or vote and the commit."""
    return turn.content, tuple((call.name, call.arguments) for call in turn.tool_calls)
