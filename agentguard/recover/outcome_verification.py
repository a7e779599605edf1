"""Verification of recoveries: the outcome follows from the steps after the recovery.

- *Refuted*: a detector finds the same failure within the window, the agent repeats the calls of the rejected
  turn, or the acceptance test refuses the run.
- *Confirmed*: the acceptance test accepts the run, or the window passes without the failure and with a usable
  result that the run did not have before.
- *Unknown*: the run ends or the window passes without such evidence. The end of a run alone confirms nothing.
- *Pending*: none of these yet.

Confirmed and refuted recoveries update the trust in error schemata.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentguard.detect.base import Finding
from agentguard.detect.result_classification import ResultStatus
from agentguard.detect.step_facts import StepFacts, canonicalize_json
from agentguard.errors import ConfigError
from agentguard.recover.actions import Reject, Restart, Rewind
from agentguard.recover.plan import REPEATED_CALL_TRIGGER, Recovery, RecoveryOutcome, RecoveryPlan
from agentguard.trajectory.model import Source, Step, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeVerification:
    """Verification of the outcome of a recovery.

    Attributes:
        window: number of steps after the recovery in which the failure must not recur.
        threshold: probability from which a finding with a code of the recovery counts.

    Raises:
        ConfigError: the window is below 1, or the threshold outside (0, 1].
    """

    window: int = 4
    threshold: float = 0.5

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ConfigError(f"verification window: {self.window} is out of range, expected 1 or more")
        if not 0 < self.threshold <= 1:
            raise ConfigError(f"verification threshold: {self.threshold} is out of range, expected (0, 1]")

    def determine_outcome(
        self,
        recovery: Recovery,
        findings: Iterable[Finding],
        run: Trajectory,
        *,
        is_final: bool = False,
        is_accepted: bool | None = None,
    ) -> RecoveryOutcome:
        """Return the outcome of a recovery.

        Args:
            recovery: the recovery.
            findings: all findings on the current branch.
            run: the run so far, with its abandoned branches.
            is_final: whether the run has ended, so that no further step follows.
            is_accepted: whether the acceptance test accepted the ended run; None if the run has not ended, or
                there is no result.
        """
        if is_accepted is not None:
            return RecoveryOutcome.CONFIRMED if is_accepted else RecoveryOutcome.REFUTED
        begin = get_resume_step(recovery)
        # A fork may go back beyond the step of the failure; the window begins at that step.
        end = max(begin, recovery.plan.step if _is_rewind(recovery.plan) else begin) + self.window
        if any(
            begin <= _get_noticed_step(finding) < end and self._is_recurrence(recovery, finding)
            for finding in findings
        ):
            return RecoveryOutcome.REFUTED
        later_steps = run.steps[begin:end]
        is_rejection = any(isinstance(action, Reject) for action in recovery.plan.actions)
        is_hold = recovery.trigger == REPEATED_CALL_TRIGGER
        if is_rejection and _is_turn_repeated(run, begin, later_steps):
            # An agent that repeats a held call may need it, so the repetition does not refute the recovery.
            return RecoveryOutcome.UNKNOWN if is_hold else RecoveryOutcome.REFUTED
        if not is_final and len(run.steps) < end:
            return RecoveryOutcome.PENDING
        if is_hold and is_rejection:
            return RecoveryOutcome.CONFIRMED
        return RecoveryOutcome.CONFIRMED if _has_new_result(run, begin, end) else RecoveryOutcome.UNKNOWN

    def _is_recurrence(self, recovery: Recovery, finding: Finding) -> bool:
        if finding.detector == recovery.trigger:
            return True
        is_same_code = bool(set(finding.codes) & set(recovery.plan.codes))
        return is_same_code and finding.probability >= self.threshold


def get_resume_step(recovery: Recovery) -> int:
    """Return the step from which the run continued after a recovery."""
    return get_plan_resume_step(recovery.plan, default=recovery.at_step - (1 if recovery.plan.undone else 0))


def get_plan_resume_step(plan: RecoveryPlan, *, default: int) -> int:
    """Return the step to which a plan rolls the run back; ``default`` if it does not roll back."""
    for action in plan.actions:
        if isinstance(action, Rewind):
            return action.to_step
        if isinstance(action, Restart):
            return 0
    return default


def _is_rewind(plan: RecoveryPlan) -> bool:
    return any(isinstance(action, Rewind) for action in plan.actions)


def _get_noticed_step(finding: Finding) -> int:
    return finding.step if finding.noticed_at is None else finding.noticed_at


def _is_turn_repeated(run: Trajectory, step: int, later_steps: Sequence[Step]) -> bool:
    """Return whether a later step repeats the calls of a turn that was rejected at ``step``."""
    rejected = [
        signature
        for branch in run.branches
        if branch.fork_step == step
        for turn in branch.steps[:1]
        if (signature := compute_call_signature(turn))
    ]
    return any(compute_call_signature(turn) in rejected for turn in later_steps)


CallSignature = tuple[tuple[str, str], ...]
"""Names and canonical arguments of the calls of a turn."""


def compute_call_signature(turn: Step) -> CallSignature:
    """Return the signature that turns with equal calls have in common; empty without calls."""
    return tuple((call.name, canonicalize_json(call.arguments)) for call in turn.tool_calls)


def _has_new_result(run: Trajectory, begin: int, end: int) -> bool:
    """Return whether a step in the window has a usable result that no other step of the run had before."""
    later = _collect_usable_results(run.steps[begin:end])
    if not later:
        return False
    known = _collect_usable_results(run.steps[:begin])
    for branch in run.branches:
        known |= _collect_usable_results(branch.steps)
    return not later <= known


def _collect_usable_results(steps: Iterable[Step]) -> set[str]:
    return {
        result.lower_text
        for step in steps
        if step.observations or step.source is Source.ENVIRONMENT
        for result in StepFacts(step).results
        if result.classification.status in _USABLE_STATUSES
    }


_USABLE_STATUSES = frozenset({ResultStatus.OK, ResultStatus.PARTIAL})
