"""Verification of recoveries: the outcome follows from the steps after the recovery.

A recovery is *refuted* if the same failure is found again within the window, or the run is not accepted. It
is *confirmed* if the window passes without the failure, or the run is accepted. Until then it is *pending*.
Confirmed and refuted recoveries update the error schemata.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agentguard.detect.base import Finding
from agentguard.errors import ConfigError
from agentguard.recover.actions import Restart, Rewind
from agentguard.recover.plan import Recovery, RecoveryOutcome, RecoveryPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeVerification:
    """Rule that determines the outcome of a recovery.

    Attributes:
        window: number of steps after the recovery in which the failure must not recur.
        threshold: probability from which a finding counts.

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
        *,
        branch_length: int,
        is_accepted: bool | None = None,
    ) -> RecoveryOutcome:
        """Return the outcome of a recovery.

        Args:
            recovery: the recovery.
            findings: all findings on the current branch.
            branch_length: length of the current branch.
            is_accepted: whether the ended run was accepted; None if the run is live or the result is unknown.
        """
        if is_accepted is not None:
            return RecoveryOutcome.CONFIRMED if is_accepted else RecoveryOutcome.REFUTED
        begin = get_resume_step(recovery)
        # A fork may go back beyond the step of the failure; the window begins at that step.
        end = max(begin, recovery.plan.step if _is_rewind(recovery.plan) else begin) + self.window
        again = any(
            begin <= finding.step < end
            and finding.probability >= self.threshold
            and _is_same_failure(recovery, finding)
            for finding in findings
        )
        if again:
            return RecoveryOutcome.REFUTED
        return RecoveryOutcome.CONFIRMED if branch_length >= end else RecoveryOutcome.PENDING


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


def _is_same_failure(recovery: Recovery, finding: Finding) -> bool:
    return finding.detector == recovery.trigger or bool(set(finding.codes) & set(recovery.plan.codes))
