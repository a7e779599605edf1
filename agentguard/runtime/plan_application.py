"""Application of a plan to the recorded run: cost, recovery, rollback and repairs."""

from __future__ import annotations

from agentguard.detect.base import Finding
from agentguard.recover.actions import Repair, Sample
from agentguard.recover.call_repair import annotate_step, apply_repairs, describe_repair
from agentguard.recover.escalation_planner import compute_plan_cost
from agentguard.recover.outcome_verification import get_resume_step
from agentguard.recover.plan import RecoveryPlan
from agentguard.runtime.pending_turn import PendingTurn
from agentguard.runtime.run_state import RunState


def apply_plan(state: RunState, pending_turn: PendingTurn, plan: RecoveryPlan, trigger: Finding) -> None:
    """Apply a plan to the recorded run.

    Charge its cost, record it as a recovery, queue its messages, roll back or repair the recorded steps, and
    schedule its vote.

    Args:
        state: state of the run.
        pending_turn: uncommitted turn of the run.
        plan: the plan.
        trigger: finding that triggered the recovery.
    """
    length = len(state)
    state.account.spend(**compute_plan_cost(plan))
    state.clear_trigger()
    state.apply_messages(plan)
    state.record_recovery(plan, trigger.detector, discarded_steps=state.run.steps[length - plan.undone :])
    if plan.undone and (step := get_resume_step(state.recoveries[-1])) < length:
        state.recorder.fork(step, reason=plan.reason)
        state.ledger.rewind(step)
        state.replay_detectors()
    _apply_committed_repairs(state, plan)
    if any(isinstance(action, Sample) for action in plan.actions):
        pending_turn.schedule_vote(plan, trigger)


def _apply_committed_repairs(state: RunState, plan: RecoveryPlan) -> None:
    """Apply the repairs of committed steps: fork before the first one and record the steps again."""
    repairs = [action for action in plan.actions if isinstance(action, Repair)]
    if not repairs:
        return
    first = min(repair.step for repair in repairs)
    steps = state.run.steps[first:]
    state.recorder.fork(first, reason=plan.reason)
    for step in steps:
        step_repairs = [repair for repair in repairs if repair.step == step.index]
        descriptions = [describe_repair(step, repair) for repair in step_repairs]
        annotations = {"repaired": descriptions} if descriptions else {}
        state.recorder.add(annotate_step(apply_repairs(step, step_repairs), annotations))
    state.replay_detectors()
