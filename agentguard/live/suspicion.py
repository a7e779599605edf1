"""From what was found to what is held likely, while the run goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentguard.detect.base import Finding
from agentguard.live.rules import ACCEPTANCE
from agentguard.localize.base import Diagnosis, Hypothesis, Verdict
from agentguard.recover.base import Recovery
from agentguard.recover.reach import NEAREST, first_of_agents, reach, within
from agentguard.recover.wording import sentence
from agentguard.trajectory.model import Step


def serious(found: Sequence[Finding], threshold: float) -> Finding | None:
    """The likeliest finding that is likely enough to act on, if any."""
    likely = [finding for finding in found if finding.probability >= threshold]
    return max(likely, key=lambda finding: finding.probability, default=None)


def refusal(reason: str, steps: int) -> Finding:
    """What an acceptance test says of a run of ``steps`` steps, as a finding."""
    return Finding(
        detector=ACCEPTANCE,
        step=max(0, steps - 1),
        codes=("fault_model:degraded_accuracy",),
        probability=1.0,
        message=reason,
    )


def hypothesis(finding: Finding, agent: str) -> Hypothesis:
    """A finding taken as the root cause."""
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
    )


def because(trigger: Finding, one: Hypothesis) -> Hypothesis:
    """A hypothesis that also says what the acceptance test said: where it went wrong, and what is missing."""
    if one.reason == trigger.message:
        return one
    return replace(one, reason=f"{sentence(trigger.message)} {sentence(one.reason)}".strip())


def to_try(
    trigger: Finding, ranked: Sequence[Hypothesis], history: Sequence[Recovery], steps: Sequence[Step]
) -> tuple[Hypothesis, ...]:
    """What may have caused a failure of a run that goes on, in the order in which to try it.

    Where something was found, that place comes first, then what is far enough back if rollbacks to near it
    were in vain. An acceptance test says that a run failed and not where: the step within reach comes first.

    Args:
        trigger: what was found.
        ranked: what the localizer holds likely.
        history: recoveries so far.
        steps: the live line, not empty.
    """
    own, count, first = hypothesis(trigger, steps[trigger.step].agent), len(steps), first_of_agents(steps)
    refused = trigger.detector == ACCEPTANCE
    nearest = min(NEAREST, count) if refused else count - own.step
    back = reach(history, count, nearest=nearest, first=first)
    chosen = within(ranked, own, steps, back) if refused or back > nearest else own
    others = [one for one in ranked if one.step != chosen.step]
    if refused:
        return tuple(because(trigger, one) for one in (chosen, *others))
    others = [one for one in others if one.step != own.step]
    return (own, *others) if chosen is own else (own, chosen, *others)


def live_diagnosis(run: str, hypotheses: tuple[Hypothesis, ...], findings: Sequence[Finding]) -> Diagnosis:
    """A diagnosis to act on, of a run that has not ended."""
    return Diagnosis(
        trajectory_id=run,
        method="live",
        verdict=Verdict.FAILURE,
        probability=max((one.probability for one in hypotheses), default=0.0),
        hypotheses=hypotheses,
        findings=tuple(findings),
    )
