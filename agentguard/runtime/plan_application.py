"""Execution of a plan on the record of a run: rollback and repairs."""

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
    """Charge the cost of a plan, record it as a recovery, and update the record and the ledger."""
    keep = len(state)
    state.account.spend(**compute_plan_cost(plan))
    state.clear_trigger()
    state.apply_messages(plan)
    state.record_recovery(plan, trigger.detector, discarded_steps=state.run.steps[keep - plan.undone :])
    if plan.undone and (back := get_resume_step(state.recoveries[-1])) < keep:
        state.recorder.fork(back, reason=plan.reason)
        state.ledger.rewind(back)
        state.replay_detectors()
    _apply_committed_repairs(state, plan)
    if any(isinstance(action, Sample) for action in plan.actions):
        pending_turn.schedule_vote(plan, trigger)


def _apply_committed_repairs(state: RunState, plan: RecoveryPlan) -> None:
    """Apply a plan's repairs of committed steps: fork before the first one and record the steps again."""
    repairs = [action for action in plan.actions if isinstance(action, Repair)]
    if not repairs:
        return
    first = min(repair.step for repair in repairs)
    steps = state.run.steps[first:]
    state.recorder.fork(first, reason=plan.reason)
    for step in steps:
        own = [repair for repair in repairs if repair.step == step.index]
        marks = {"repaired": [describe_repair(step, repair) for repair in own]} if own else {}
        state.recorder.add(annotate_step(apply_repairs(step, own), marks))
    state.replay_detectors()
