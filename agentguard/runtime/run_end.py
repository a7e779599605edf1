"""End of a run: accepted, or refused with a plan. A part of `agentguard.runtime.session.Session`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

from agentguard.detect.base import DetectorFailure, Finding, most_severe
from agentguard.judge.response_safety import TAXONOMY
from agentguard.recover.acceptance.base import ACCEPTANCE_TRIGGER
from agentguard.recover.plan import RecoveryPlan, RecoveryTier
from agentguard.runtime.effect_claims import (
    EFFECT_CLAIM_TRIGGER,
    MAX_REFUSED_CLAIMS,
    find_unsupported_claim,
)
from agentguard.runtime.live_diagnosis import (
    build_live_diagnosis,
    build_refusal_finding,
    plan_recovery,
    select_plan,
    to_hypothesis,
)
from agentguard.runtime.pending_turn import PendingTurn
from agentguard.runtime.plan_execution import apply_plan
from agentguard.runtime.read_retry import find_read_fault
from agentguard.runtime.run_state import RunState

_SPENT_BUDGET: Final = (
    "The run ends: its tools failed, and the runs of this guard have spent their retry budget."
)


def end_run(state: RunState, pending_turn: PendingTurn, *, is_refusable: bool) -> RecoveryPlan | None:
    """Implement `Session.end` for a run that has not ended."""
    accepted = _run_acceptance_test(state)
    if accepted is True:
        state.config.acceptance_retry_budget.deposit()
    found = state.finish_detectors()
    if accepted is None and not state.has_earlier_turns:
        claim = state.run_safely(find_unsupported_claim, state.run, state.ledger)
        if claim is not None and is_refusable:
            found = (*found, claim)
        elif claim is not None:
            state.findings.append(claim)
    plan = (
        _plan_refusal(state, pending_turn, accepted, found) if is_refusable and accepted is not True else None
    )
    if plan is None:  # a refusal by the acceptance test or the detectors takes precedence over the judge
        plan = _assess_safety(state, pending_turn, is_refusable=is_refusable)
    if plan is None or state.stop_reason is not None:
        _finish(state, accepted)
    return plan


def _assess_safety(state: RunState, pending_turn: PendingTurn, *, is_refusable: bool) -> RecoveryPlan | None:
    """Return the plan for an unsafe last message; record the finding even if the end cannot be refused."""
    safety = state.config.safety_assessor
    if safety is None or state.stop_reason is not None:
        return None
    held = state.run_safely(safety, state.run)
    if held is None:
        return None
    state.assessment = held
    if held.fault:
        state.failures.append(DetectorFailure(detector=TAXONOMY, step=held.step, error=held.fault))
    trigger = held.to_finding()
    if trigger is None:
        return None
    state.findings.append(trigger)
    state.end_triggers.add(trigger.detector)
    state.update_outcomes()
    if not is_refusable:
        return None
    plan = state.run_safely(_build_plan, state, trigger)
    if plan is not None:
        apply_plan(state, pending_turn, plan, trigger)
        state.replay_detectors()  # they have processed the end of a run that continues
        state.findings.append(trigger)
    return plan


def _build_plan(state: RunState, trigger: Finding) -> RecoveryPlan | None:
    """Plan from the escalation policy of the action; the message itself is the root cause."""
    run = state.run
    one = to_hypothesis(trigger, run.steps[trigger.step].agent)
    diagnosis = build_live_diagnosis(run.id, (one,), state.findings)
    return select_plan(state, diagnosis, run, trigger.detector, is_committed=True)


def _plan_refusal(
    state: RunState, pending_turn: PendingTurn, accepted: str | None, findings: Sequence[Finding]
) -> RecoveryPlan | None:
    trigger = (
        build_refusal_finding(accepted, len(state))
        if accepted
        else most_severe(findings, state.config.finding_threshold)
    )
    if trigger is None or state.stop_reason is not None or _is_claim_refused_often(state, trigger):
        return None
    state.findings += findings
    state.end_triggers.add(trigger.detector)
    state.update_outcomes(accepted=False)
    plan = state.run_safely(plan_recovery, state, trigger)
    if plan is None or plan.tier is RecoveryTier.STOP:  # the run ends anyway
        return None
    if _exceeds_retry_budget(state, trigger):
        state.findings.append(replace(trigger, message=f"{trigger.message} {_SPENT_BUDGET}"))
        return None
    apply_plan(state, pending_turn, plan, trigger)
    state.replay_detectors()  # they have processed the end of a run that continues
    return plan


def _is_claim_refused_often(state: RunState, trigger: Finding) -> bool:
    refused = sum(one.trigger == EFFECT_CLAIM_TRIGGER for one in state.recoveries)
    return trigger.detector == EFFECT_CLAIM_TRIGGER and refused >= MAX_REFUSED_CLAIMS


def _exceeds_retry_budget(state: RunState, trigger: Finding) -> bool:
    """Return whether the runs of the guard have spent their recoveries from refusals after failed tools.

    Such a recovery calls the tool again. While a server is overloaded, the calls of all runs together keep it
    overloaded.
    """
    if trigger.detector != ACCEPTANCE_TRIGGER:
        return False
    results = next((step.observations for step in reversed(state.run.steps) if step.observations), ())
    has_fault = any(find_read_fault(one.content, has_failed=one.is_error) for one in results)
    return has_fault and not state.config.acceptance_retry_budget.withdraw()


def _run_acceptance_test(state: RunState) -> Literal[True] | str | None:
    """Return True, the reason of the refusal, or None if there is no result."""
    accept = state.config.acceptance_function
    if accept is None or state.stop_reason is not None:
        return None
    verdict = state.run_safely(accept, state.run)
    return "the acceptance test refused the outcome" if verdict is False else verdict or None


def _finish(state: RunState, accepted: Literal[True] | str | None) -> None:
    known = None if accepted is None else accepted is True
    state.update_outcomes(accepted=known, is_final=True)
    state.has_ended = True
    state.recorder.end()
    run = state.run
    for told in state.config.run_end_observers:
        state.run_safely(told, run, tuple(state.findings))
