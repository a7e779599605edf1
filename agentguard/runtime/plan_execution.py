"""Execution of a plan on the record of a run: rollback and repairs."""

from __future__ import annotations

from agentguard.detect.base import Finding
from agentguard.recover.actions import Sample
from agentguard.recover.outcome_verification import get_resume_step
from agentguard.recover.plan import RecoveryPlan
from agentguard.recover.planner import compute_plan_cost
from agentguard.runtime.pending_turn import PendingTurn
from agentguard.runtime.run_state import RunState
from agentguard.runtime.step_annotations import apply_committed_repairs


def apply_plan(state: RunState, pending_turn: PendingTurn, plan: RecoveryPlan, trigger: Finding) -> None:
    """Charge the cost of a plan, record it as a recovery, and update the record and the ledger."""
    keep = len(state)
    state.account.spend(**compute_plan_cost(plan))
    state._apply_messages(plan)
    state._record_recovery(plan, trigger.detector, discarded_steps=state.run.steps[keep - plan.undone :])
    if plan.undone and (back := get_resume_step(state.recoveries[-1])) < keep:
        state.recorder.fork(back, reason=plan.reason)
        state.ledger.rewind(back)
        state._rerun_detectors()
    apply_committed_repairs(state, plan)
    if any(isinstance(action, Sample) for action in plan.actions):
        pending_turn.schedule_vote(plan, trigger)
