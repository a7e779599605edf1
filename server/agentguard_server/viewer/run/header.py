"""Header of the page of a run: the failure in one sentence, and the recovery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.localize.embedded import TRAINING_NOTE
from agentguard.localize.step_support import StepSupport, rate_step
from agentguard.quantity import format_quantity
from agentguard.recover.plan import REPEATED_CALL_TRIGGER
from agentguard.trajectory.model import Source, Step
from agentguard.verdict import Verdict
from agentguard_server.viewer.data.run_data import RunData
from agentguard_server.viewer.data.stored_recovery import StoredRecovery
from agentguard_server.viewer.formatting import CodeTitle, find_code_title, format_percent
from agentguard_server.viewer.run.branches import CURRENT_BRANCH, BranchView, BranchViews
from agentguard_server.viewer.run.conversation import compute_seconds
from agentguard_server.viewer.run.highlights import Quote, QuoteIndex

RunState = Literal["failed", "recovered", "lost", "pending", "fine", "undecided", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCauseCandidate:
    """Candidate for the root cause.

    Attributes:
        rank: rank among the hypotheses, from 1.
        branch_id, step, agent, module: position of the candidate.
        codes: its codes, most specific first.
        probability: probability that the step is the root cause.
        reason, correction: the explanation, and the proposed correction.
        quotes: its evidence.
        is_in_run: whether the step exists in the run.
    """

    rank: int
    branch_id: str
    step: int
    agent: str
    module: str
    codes: tuple[CodeTitle, ...]
    probability: float
    reason: str
    correction: str
    quotes: tuple[Quote, ...]
    is_in_run: bool

    @property
    def is_supported(self) -> bool:
        """Return whether a finding or a quote supports the candidate."""
        return bool(self.codes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTotals:
    """Totals over all branches of the run; None for values that no step records.

    Attributes:
        guard_seconds: seconds that the guard took during the run.
        timing: durations of the parts of the diagnosis in seconds.
    """

    steps: int
    abandoned_steps: int
    agents: int
    tokens: int | None
    cost: float | None
    duration: float | None
    guard_seconds: float | None
    timing: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """Header of the page.

    Attributes:
        state: state of the run as a whole.
        title: the state in a few words.
        explanation: the state in a sentence.
        probability: probability that the final run failed; None without a diagnosis.
        cause: the root cause; None if no failure was found.
        causes: hypotheses of the diagnosis by rank, without unlikely ones.
        recovery: recovery that determined the state.
        final_verdict: verdict of the diagnosis on the final run, after recoveries.
        is_training_run: whether the model of the diagnosis was trained on the run.
    """

    state: RunState
    title: str
    explanation: str
    probability: float | None
    cause: RootCauseCandidate | None
    causes: tuple[RootCauseCandidate, ...]
    recovery: StoredRecovery | None
    final_verdict: str
    totals: RunTotals
    is_training_run: bool

    @property
    def support(self) -> StepSupport | None:
        """Return the support for the root cause; None without a cause. A recovery makes it certain."""
        if self.cause is None:
            return None
        if self.recovery is not None:
            return StepSupport.ROOT_CAUSE
        return rate_step(
            has_failed=self.state == "failed",
            has_evidence=self.cause.is_supported,
            probability=self.cause.probability,
        )

    @property
    def is_cause_certain(self) -> bool:
        """Return whether evidence or a recovery supports the root cause of a failed run."""
        return self.support is StepSupport.ROOT_CAUSE

    @property
    def has_likely_cause(self) -> bool:
        """Return whether the first candidate is a root cause or a likely step."""
        return self.support in (StepSupport.ROOT_CAUSE, StepSupport.LIKELY)


_MIN_CAUSES = 3
_MIN_PROBABILITY = 0.1
"""Least probability of a hypothesis after the third; less likely ones are left out."""


def build_header(data: RunData, branches: BranchViews, quotes: QuoteIndex) -> RunHeader:
    """Build the header. It adds the quotes of causes, which have the first numbers, to ``quotes``."""
    diagnosis = data.diagnosis
    main = _select_main_recovery(data.recoveries)
    recovery_cause = _build_recovery_cause(main, branches, quotes) if main is not None else None
    causes = _build_causes(diagnosis, branches.current, quotes, is_primary=main is None) if diagnosis else ()
    state, title, explanation = _describe_state(data, main, diagnosis)
    return RunHeader(
        state=state,
        title=title,
        explanation=explanation,
        probability=diagnosis.probability if diagnosis else None,
        cause=recovery_cause or (causes[0] if causes and state != "fine" else None),
        causes=causes,
        recovery=main,
        final_verdict=_describe_final_verdict(diagnosis) if main is not None else "",
        totals=compute_totals(data, branches),
        is_training_run=diagnosis is not None and TRAINING_NOTE in diagnosis.notes,
    )


def _select_main_recovery(recoveries: Sequence[StoredRecovery]) -> StoredRecovery | None:
    """Return the last recovery that stopped the run, else the one that abandoned most steps.

    Confirmed recoveries precede others. If the agent repeated a call that the guard had held, the call may be
    intended; such a recovery does not make the run a failure.
    """
    recoveries = [one for one in recoveries if not _is_insisted_call(one)]
    confirmed = [one for one in recoveries if one.outcome == "recovered"]
    stops = [one for one in recoveries if one.stop_reason]
    return (
        stops[-1]
        if stops
        else max(confirmed or recoveries, key=lambda one: (one.undone_steps, one.order), default=None)
    )


def _is_insisted_call(recovery: StoredRecovery) -> bool:
    return recovery.trigger == REPEATED_CALL_TRIGGER and recovery.outcome == "unknown"


def _describe_state(
    data: RunData, main: StoredRecovery | None, diagnosis: Diagnosis | None
) -> tuple[RunState, str, str]:
    if main is not None:
        return _describe_recovered_state(data.recoveries, main, diagnosis)
    if diagnosis is None:
        return (
            "unknown",
            "Not diagnosed",
            "The store has no diagnosis of this run. “Diagnose” adds one.",
        )
    if diagnosis.verdict is Verdict.NO_FAILURE_FOUND:
        return "fine", "No failure found", ""
    if diagnosis.verdict is Verdict.UNDECIDED:
        return (
            "undecided",
            "Undecided",
            "The evidence does not suffice for a verdict.",
        )
    return "failed", "Failed", ""


def _describe_recovered_state(
    recoveries: Sequence[StoredRecovery], main: StoredRecovery, diagnosis: Diagnosis | None
) -> tuple[RunState, str, str]:
    times = format_quantity(len(recoveries), "time")
    if main.stop_reason:
        return (
            "lost",
            "Stopped by the guard",
            f"The guard intervened {times} and then stopped the run: {main.stop_reason}",
        )
    undone_steps = sum(recovery.undone_steps for recovery in recoveries)
    summary = f"The guard intervened {times}" + (
        f" and rolled back {format_quantity(undone_steps, 'step')} in all" if undone_steps else ""
    )
    summary += f"; {_describe_recovery(main)}." if main.resume_step is not None else "."
    if recoveries[-1].outcome == "failed" or (diagnosis is not None and diagnosis.verdict is Verdict.FAILED):
        return "lost", "Failed after recovery", summary
    if any(recovery.outcome == "planned" for recovery in recoveries):
        return "pending", "Recovery in progress", f"{summary} Its outcome is not known yet."
    if recoveries[-1].outcome == "unknown":
        return (
            "undecided",
            "Failed; outcome of the recovery unknown",
            f"{summary} No later result confirms or refutes it.",
        )
    if main.outcome == "recovered":
        return "recovered", "Failed and recovered", f"{summary} A later result confirmed the recovery."
    return "lost", "Recovery failed", summary


def _describe_recovery(main: StoredRecovery) -> str:
    """Return the rollback of a recovery as a clause."""
    compensations = [one for one in main.actions if one.get("action") == "Compensate"]
    count = sum(len(one.get("effects") or ()) for one in compensations)
    summary = f"it rolled back to step {main.step}"
    return f"{summary} and compensated {format_quantity(count, 'effect')}" if count else summary


def _describe_final_verdict(diagnosis: Diagnosis | None) -> str:
    if diagnosis is None:
        return ""
    verdict = f"{diagnosis.verdict.label}, p(failed) {format_percent(diagnosis.probability)}"
    return f"Verdict on the final branch: {verdict}."


def _build_recovery_cause(
    main: StoredRecovery, branches: BranchViews, quotes: QuoteIndex
) -> RootCauseCandidate:
    """Return the hypothesis that a recovery addressed, on the branch that the recovery abandoned."""
    branch = branches.find_by_recovery(main)
    is_in_run = 0 <= main.step < len(branch.steps)
    return RootCauseCandidate(
        rank=1,
        branch_id=branch.owner_ids[main.step] if is_in_run else CURRENT_BRANCH,
        step=main.step,
        agent=branch.steps[main.step].agent if is_in_run else "",
        module="",
        codes=tuple(find_code_title(code) for code in main.codes),
        probability=0.0,
        reason=main.reason,
        correction=main.agent_message,
        quotes=quotes.add(main.evidence, branch.steps, branch.owner_ids, is_primary=True),
        is_in_run=is_in_run,
    )


def _build_causes(
    diagnosis: Diagnosis, current: BranchView, quotes: QuoteIndex, *, is_primary: bool
) -> tuple[RootCauseCandidate, ...]:
    return tuple(
        _build_cause(one, rank, current, quotes, is_primary=is_primary and rank == 1)
        for rank, one in enumerate(diagnosis.hypotheses, 1)
        if rank <= _MIN_CAUSES or one.probability >= _MIN_PROBABILITY
    )


def _build_cause(
    hypothesis: Hypothesis, rank: int, current: BranchView, quotes: QuoteIndex, *, is_primary: bool
) -> RootCauseCandidate:
    return RootCauseCandidate(
        rank=rank,
        branch_id=CURRENT_BRANCH,
        step=hypothesis.step,
        agent=hypothesis.agent,
        module=hypothesis.module or "",
        codes=tuple(find_code_title(code) for code in hypothesis.codes),
        probability=hypothesis.probability,
        reason=hypothesis.reason,
        correction=hypothesis.correction,
        quotes=quotes.add(hypothesis.evidence, current.steps, current.owner_ids, is_primary=is_primary),
        is_in_run=0 <= hypothesis.step < len(current.steps),
    )


def compute_totals(data: RunData, branches: BranchViews) -> RunTotals:
    """Return the totals over all branches, because abandoned steps had a cost, too."""
    steps = [step for branch in branches for step in branch.own_steps]
    usages = [step.usage for step in steps if step.usage is not None]
    counted = [
        usage for usage in usages if usage.prompt_tokens is not None or usage.completion_tokens is not None
    ]
    costs = [usage.cost_usd for usage in usages if usage.cost_usd is not None]
    timing = tuple((part, value) for part, value in data.diagnosis.timing.items()) if data.diagnosis else ()
    return RunTotals(
        steps=len(branches.current.steps),
        abandoned_steps=sum(len(branch.own_steps) for branch in branches.abandoned),
        agents=len({step.agent for step in branches.current.steps if step.source is Source.AGENT}),
        tokens=sum((u.prompt_tokens or 0) + (u.completion_tokens or 0) for u in counted) if counted else None,
        cost=sum(costs) if costs else None,
        duration=_compute_duration(steps),
        guard_seconds=_find_guard_seconds(data),
        timing=timing,
    )


def _compute_duration(steps: Sequence[Step]) -> float | None:
    starts = [step.started_at for step in steps if step.started_at is not None]
    ends = [step.ended_at for step in steps if step.ended_at is not None]
    if not starts or not (ends or len(starts) > 1):
        return None
    span = max(*ends, *starts) - min(starts) if ends else max(starts) - min(starts)
    if span > 0:
        return span
    durations = [seconds for step in steps if (seconds := compute_seconds(step)) is not None]
    return sum(durations) if durations else None


def _find_guard_seconds(data: RunData) -> float | None:
    guard_data = data.run.extra.get("agentguard")
    seconds = guard_data.get("guard_s") if isinstance(guard_data, dict) else None
    return float(seconds) if isinstance(seconds, int | float) else None
