"""Diagnosis of a live run: ranked hypotheses from findings and the localizer, and the recovery plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentguard.detect.base import Finding
from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.recover.acceptance.base import ACCEPTANCE_TRIGGER
from agentguard.recover.agent_messages import to_sentence
from agentguard.recover.plan import Recovery, RecoveryPlan
from agentguard.recover.rollback_step import (
    MIN_HORIZON,
    find_first_agent_step,
    rollback_horizon,
    select_rollback_step,
)
from agentguard.recover.strategy import RecoveryContext
from agentguard.runtime.run_state import RunState
from agentguard.trajectory.model import Step, Trajectory
from agentguard.verdict import Verdict


def build_refusal_finding(reason: str, steps: int) -> Finding:
    """Return the finding for a refusal by the acceptance test.

    Args:
        reason: reason of the refusal.
        steps: number of steps of the run.
    """
    return Finding(
        detector=ACCEPTANCE_TRIGGER,
        step=max(0, steps - 1),
        codes=("fault_model:degraded_accuracy",),
        probability=1.0,
        message=reason,
    )


def to_hypothesis(finding: Finding, agent: str) -> Hypothesis:
    """Convert a finding to the hypothesis that its step is the root cause."""
    codes = (code.partition(":")[2] for code in finding.codes if code.startswith("agent_error:"))
    return Hypothesis(
        step=finding.step,
        agent=agent,
        module=next((code.partition(".")[0] for code in codes), None),
        codes=finding.codes,
        probability=finding.probability,
        evidence=finding.evidence,
        correction=finding.correction,
        reason=finding.message,
        detectors=(finding.detector,),
    )


def explain_candidate(trigger: Finding, hypothesis: Hypothesis) -> Hypothesis:
    """Return a hypothesis whose reason is the failure that the agent sees.

    The reason of a hypothesis without evidence and codes describes only its rank, so the message of the
    trigger replaces it. The reason of the acceptance test precedes any other reason.
    """
    if hypothesis.reason == trigger.message:
        return hypothesis
    if not hypothesis.evidence and not hypothesis.codes:
        correction = hypothesis.correction or trigger.correction
        return replace(hypothesis, reason=trigger.message, correction=correction)
    if trigger.detector != ACCEPTANCE_TRIGGER:
        return hypothesis
    return replace(
        hypothesis, reason=f"{to_sentence(trigger.message)} {to_sentence(hypothesis.reason)}".strip()
    )


def rank_candidates(
    trigger: Finding, ranked: Sequence[Hypothesis], past_recoveries: Sequence[Recovery], steps: Sequence[Step]
) -> tuple[Hypothesis, ...]:
    """Return the candidates for the root cause of a failure in a live run, in the order of the attempts.

    - The step of a finding comes first. If rollbacks near it were ineffective, an earlier step
      comes second.
    - A refusal by the acceptance test has no step. The most likely step within the rollback horizon comes
      first.

    Args:
        trigger: the finding that triggers the recovery.
        ranked: hypotheses of the localizer.
        past_recoveries: recoveries so far.
        steps: steps of the current branch, not empty.
    """
    trigger_hypothesis = to_hypothesis(trigger, steps[trigger.step].agent)
    count, first_agent_step = len(steps), find_first_agent_step(steps)
    is_refusal = trigger.detector == ACCEPTANCE_TRIGGER
    nearest = min(MIN_HORIZON, count) if is_refusal else count - trigger_hypothesis.step
    horizon = rollback_horizon(past_recoveries, count, min_horizon=nearest, first_agent_step=first_agent_step)
    selected = (
        select_rollback_step(ranked, trigger_hypothesis, steps, horizon)
        if is_refusal or horizon > nearest
        else trigger_hypothesis
    )
    others = [one for one in ranked if one.step != selected.step]
    if not is_refusal:
        others = [one for one in others if one.step != trigger_hypothesis.step]
    ranked = (
        (selected, *others)
        if is_refusal or selected is trigger_hypothesis
        else (trigger_hypothesis, selected, *others)
    )
    return tuple(explain_candidate(trigger, one) for one in ranked)


def build_live_diagnosis(
    run_id: str, hypotheses: tuple[Hypothesis, ...], findings: Sequence[Finding]
) -> Diagnosis:
    """Build the diagnosis of a run that has not ended."""
    return Diagnosis(
        trajectory_id=run_id,
        method="live",
        verdict=Verdict.FAILED,
        probability=max((one.probability for one in hypotheses), default=0.0),
        hypotheses=hypotheses,
        findings=tuple(findings),
    )


def plan_recovery(state: RunState, trigger: Finding) -> RecoveryPlan | None:
    """Diagnose the run after a finding and return the planner's plan, if there is one."""
    run = state.run
    ranked: tuple[Hypothesis, ...] = ()
    if state.config.localizer is not None:
        located = state.config.localizer.locate(run, state.findings)
        ranked = _apply_schema_feedback(state, run, located, rerank=True).hypotheses
    candidates = rank_candidates(trigger, ranked, state.recoveries, run.steps)
    diagnosis = build_live_diagnosis(run.id, candidates, state.findings)
    return select_plan(state, diagnosis, run, trigger.detector, is_committed=True)


def select_plan(
    state: RunState,
    diagnosis: Diagnosis,
    run: Trajectory,
    trigger: str,
    *,
    is_committed: bool,
    trigger_probability: float | None = None,
    escalation: str | None = None,
) -> RecoveryPlan | None:
    """Return the planner's plan for a diagnosis, if there is one.

    Args:
        state: state of the run.
        diagnosis: hypotheses, in the order to try them.
        run: the run that was diagnosed; its last step may be a proposed turn.
        trigger: name of the detector whose finding triggers the recovery.
        is_committed: whether the last step of ``run`` is committed.
        trigger_probability: probability of a finding below the policy's threshold.
        escalation: name of the escalation policy; by default ``trigger``.
    """
    diagnosis = _apply_schema_feedback(state, run, diagnosis, rerank=False)
    context = RecoveryContext(
        run=run,
        diagnosis=diagnosis,
        capabilities=state.capabilities,
        account=state.account,
        ledger=state.ledger,
        past_recoveries=tuple(state.recoveries),
        is_committed=is_committed,
        repair_function=state.config.repair_function,
        restorable_steps=None if state.restorable_steps is None else state.restorable_steps(),
    )
    plan = state.config.planner.plan(
        context, trigger, trigger_probability=trigger_probability, escalation=escalation
    ).plan
    schemata = () if plan is None else diagnosis.hypotheses[plan.hypothesis].schemata
    return replace(plan, schemata=schemata) if plan is not None and schemata else plan


def _apply_schema_feedback(
    state: RunState, run: Trajectory, diagnosis: Diagnosis, *, rerank: bool
) -> Diagnosis:
    annotate = state.config.annotate_diagnosis
    if annotate is None:
        return diagnosis
    return state.run_safely(annotate, run, diagnosis, state.findings, rerank=rerank) or diagnosis
