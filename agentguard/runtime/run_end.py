"""End of a run: acceptance, or refusal with a plan. A part of `agentguard.runtime.session.Session`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, Literal

from agentguard.detect.base import DetectorFailure, Evidence, Finding, most_severe
from agentguard.detect.result_classification import classify_result
from agentguard.detect.tool_names import is_read_tool, is_terminal_tool, normalize_tool_name
from agentguard.judge.response_safety import TAXONOMY
from agentguard.recover.acceptance.base import ACCEPTANCE_TRIGGER
from agentguard.recover.effect_ledger import EffectLedger
from agentguard.recover.plan import RecoveryPlan, RecoveryTier
from agentguard.runtime.live_diagnosis import (
    build_live_diagnosis,
    build_refusal_finding,
    plan_recovery,
    select_plan,
    to_hypothesis,
)
from agentguard.runtime.pending_turn import PendingTurn
from agentguard.runtime.plan_application import apply_plan
from agentguard.runtime.read_retry import find_read_fault
from agentguard.runtime.run_state import RunState
from agentguard.trajectory.model import Source, Step, Trajectory

_EXHAUSTED_BUDGET: Final = (
    "The run ends: its tools failed, and the runs of this guard have exhausted their retry budget."
)


def end_run(state: RunState, pending_turn: PendingTurn, *, is_refusable: bool) -> RecoveryPlan | None:
    """Implement `Session.end` for a run that has not ended."""
    accepted = _run_acceptance_test(state)
    if accepted is True:
        state.config.acceptance_retry_budget.deposit()
    found = state.finish_detectors() if is_refusable else ()
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
    assessment = state.run_safely(safety, state.run)
    if assessment is None:
        return None
    state.assessment = assessment
    if assessment.fault:
        state.failures.append(
            DetectorFailure(detector=TAXONOMY, step=assessment.step, error=assessment.fault)
        )
    trigger = assessment.to_finding()
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
        state.replay_detectors()  # the detectors have processed the end, but the run continues
        state.findings.append(trigger)
    return plan


def _build_plan(state: RunState, trigger: Finding) -> RecoveryPlan | None:
    """Return the plan of the action's escalation policy; the unsafe message is the root cause."""
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
    if plan is None or plan.tier is RecoveryTier.STOP:  # the run ends without a recovery
        return None
    if _exceeds_retry_budget(state, trigger):
        state.findings.append(replace(trigger, message=f"{trigger.message} {_EXHAUSTED_BUDGET}"))
        return None
    apply_plan(state, pending_turn, plan, trigger)
    state.replay_detectors()  # the detectors have processed the end, but the run continues
    return plan


def _is_claim_refused_often(state: RunState, trigger: Finding) -> bool:
    refused = sum(one.trigger == EFFECT_CLAIM_TRIGGER for one in state.recoveries)
    return trigger.detector == EFFECT_CLAIM_TRIGGER and refused >= MAX_REFUSED_CLAIMS


def _exceeds_retry_budget(state: RunState, trigger: Finding) -> bool:
    """Return whether a refusal after a failed tool would exceed the retry budget of all runs of the guard.

    The recovery from such a refusal calls the tool again. The repeated calls of all runs can keep a
    server overloaded.
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
    return "the acceptance test refused the output" if verdict is False else verdict or None


def _finish(state: RunState, accepted: Literal[True] | str | None) -> None:
    is_accepted = None if accepted is None else accepted is True
    state.update_outcomes(accepted=is_accepted, is_final=True)
    state.has_ended = True
    state.recorder.end()
    run = state.run
    for observer in state.config.run_end_observers:
        state.run_safely(observer, run, tuple(state.findings))


EFFECT_CLAIM_TRIGGER: Final = "effect_claim"
"""Detector name of findings on claims without a call, and name of their escalation policy."""

MAX_REFUSED_CLAIMS: Final = 2
"""Maximum number of ends of one run that the check refuses."""

_CODES = (
    "agentrx:invention_of_new_information",
    "agent_error:reflection.outcome_misinterpretation",
    "fault_model:fail_silence_violation",
)
_PROBABILITY = 0.8
_CLAIM_PATTERN = re.compile(
    r"\b(?:i|we)(?:['\u2019]ve| have)?(?: (?:just|now|already|successfully|also))* ([a-z]{3,20})\b"
    r"|\b(?:has|have) (?:now |already |successfully )*been (?:successfully )?([a-z]{3,20})\b"
    r"|\b(?:is|are) (?:now|successfully) ([a-z]{3,20})\b"
    r'|"(?:status|state|outcome|result)"\s*:\s*"([a-z]{3,20})"'
)
_NEGATION_PATTERN = re.compile(
    r"\b(?:not|never|no|if|once|when|until|would|could|cannot|unable|before)\b|n['\u2019]t\b"
)
_IRREGULAR_PARTICIPLES = {
    "buy": "bought", "make": "made", "pay": "paid", "put": "put", "sell": "sold", "send": "sent",
    "set": "set", "write": "written",
}  # fmt: skip


def find_unsupported_claim(run: Trajectory, ledger: EffectLedger) -> Finding | None:
    """Return a finding if the last message claims an effect of an offered tool and no call had that effect.

    The verb of the claim must be the verb of a tool's name ("booked", ``book_seat``). The status of a
    structured answer is a claim, too: ``{"status": "booked"}``. A participle in an earlier text of the run
    excludes a finding: a user or another agent may have caused the effect.
    """
    last = run.steps[-1] if run.steps else None
    if last is None or last.source is not Source.AGENT or last.tool_calls:
        return None
    tools_by_participle = _collect_participles(run)
    for match in _CLAIM_PATTERN.finditer(last.content.lower()):
        participle = next(word for word in match.groups() if word)
        tools = tools_by_participle.get(participle)
        if tools is None or _is_negated(last.content.lower(), match.start()):
            continue
        if not _has_effect(run, ledger, tools) and not _is_mentioned(run, participle):
            return _build_finding(last, match, participle, sorted(tools))
    return None


def _build_finding(last: Step, match: re.Match[str], participle: str, tools: list[str]) -> Finding:
    names = " or ".join(tools)
    start, end = match.span()
    evidence = Evidence(step=last.index, field="content", quote=last.content[start:end], start=start, end=end)
    return Finding(
        detector=EFFECT_CLAIM_TRIGGER,
        step=last.index,
        codes=_CODES,
        probability=_PROBABILITY,
        message=f"{last.agent} says that something was {participle}, but no call of {names} has succeeded.",
        correction=f"Call {names} and report its result, or state that it was not done.",
        evidence=(evidence,) if len(last.content) == len(last.content.lower()) else (),
    )


def _collect_participles(run: Trajectory) -> dict[str, set[str]]:
    """Return the tools by the past participles of their verbs."""
    found: dict[str, set[str]] = {}
    for tool in run.tools:
        if is_read_tool(tool.name) or is_terminal_tool(tool.name):
            continue
        verb = normalize_tool_name(tool.name).partition("_")[0]
        if len(verb) > 2:
            for participle in _build_participles(verb):
                found.setdefault(participle, set()).add(tool.name)
    return found


def _build_participles(verb: str) -> Iterable[str]:
    if verb in _IRREGULAR_PARTICIPLES:
        return (_IRREGULAR_PARTICIPLES[verb],)
    if verb.endswith("e"):
        return (f"{verb}d",)
    if verb.endswith("y"):
        return (f"{verb[:-1]}ied", f"{verb}ed")
    return (f"{verb}ed", f"{verb}{verb[-1]}ed")


def _has_effect(run: Trajectory, ledger: EffectLedger, tools: set[str]) -> bool:
    """Return whether a call of one of the tools succeeded or may have succeeded, on any branch."""
    if any(effect.tool in tools for effect in ledger.list_active()):
        return True
    every = (*run.steps, *(step for branch in run.branches for step in branch.steps))
    return any(
        observation.tool in tools and not classify_result(observation.content.lower()).is_error
        for step in every
        for observation in step.observations
    )


def _is_mentioned(run: Trajectory, participle: str) -> bool:
    texts = [run.task, *run.system_prompts.values()]
    claimant = run.steps[-1].agent
    for step in run.steps[:-1]:
        texts += [observation.content for observation in step.observations]
        if step.source is not Source.AGENT or step.agent != claimant:
            texts.append(step.content)
    word = re.compile(rf"\b{re.escape(participle)}\b", re.IGNORECASE)
    return any(word.search(text) for text in texts)


def _is_negated(lower_text: str, offset: int) -> bool:
    sentence_start = max(lower_text.rfind(mark, 0, offset) for mark in ".!?\n")
    return _NEGATION_PATTERN.search(lower_text, sentence_start + 1, offset + 24) is not None
