"""Did it help: the outcome of a recovery, from what the run did next.

A recovery is *refuted* when what set it off is found again soon after, or the run fails in the end. It is
*confirmed* when enough steps went by without it, or the run is accepted. Until then it is pending. Confirmed
and refuted recoveries are what the schema store learns from.
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
    """How an outcome is judged.

    Attributes:
        window: steps after the recovery within which what set it off must not come again.
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
        """Judge a recovery.

        Args:
            recovery: what was done.
            findings: all findings on the live line as it is now.
            steps: length of the live line now.
            accepted: whether the run, having ended, was accepted; None while it goes on or nobody knows.
        """
        if is_accepted is not None:
            return RecoveryOutcome.CONFIRMED if is_accepted else RecoveryOutcome.REFUTED
        begin = get_resume_step(recovery)
        # A fork may go back further than to the step: the window begins where it could come again.
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
    """The step the run went on from after a recovery."""
    return get_plan_resume_step(recovery.plan, default=recovery.at_step - (1 if recovery.plan.undone else 0))


def get_plan_resume_step(plan: RecoveryPlan, *, default: int) -> int:
    """The step that a plan takes the live line back to; the default where it does not."""
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
