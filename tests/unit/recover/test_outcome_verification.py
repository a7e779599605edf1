"""A recovery is confirmed if its trigger does not occur again."""

from __future__ import annotations

import pytest

from agentguard.detect.base import Finding
from agentguard.errors import ConfigError
from agentguard.recover.actions import Restart, Rewind, SendMessage
from agentguard.recover.outcome_verification import OutcomeVerification, get_resume_step
from agentguard.recover.plan import Recovery, RecoveryOutcome, RecoveryPlan, RecoveryTier

CODE = "agent_error:action.parameter_error"


def recovery(*actions: object, undone: int = 0) -> Recovery:
    plan = RecoveryPlan(
        strategy="x",
        tier=RecoveryTier.HINT,
        actions=actions,
        step=3,
        codes=(CODE,),
        undone=undone,  # type: ignore[arg-type]
    )
    return Recovery(id=0, plan=plan, trigger="exact_loop", at_step=6)


BACK = recovery(Rewind(to_step=3, by="truncate"), undone=3)


def finding(
    step: int, *, detector: str = "exact_loop", code: str = "mast:x", probability: float = 0.9
) -> Finding:
    return Finding(detector=detector, step=step, codes=(code,), probability=probability, message="again")


@pytest.mark.parametrize(
    ("given", "at"),
    [
        (BACK, 3),
        (recovery(Restart(note="n"), undone=6), 0),
        (recovery(SendMessage(text="t")), 6),
        (recovery(undone=1), 5),
    ],
)
def test_resume_step_depends_on_the_plan(given: Recovery, at: int) -> None:
    assert get_resume_step(given) == at


@pytest.mark.parametrize(
    ("found", "steps", "outcome"),
    [
        ([], 4, RecoveryOutcome.PENDING),
        ([], 7, RecoveryOutcome.CONFIRMED),
        ([finding(5)], 6, RecoveryOutcome.REFUTED),
        ([finding(5, detector="other", code=CODE)], 6, RecoveryOutcome.REFUTED),
        ([finding(5, detector="other")], 7, RecoveryOutcome.CONFIRMED),
        ([finding(5, probability=0.2)], 7, RecoveryOutcome.CONFIRMED),
        ([finding(2)], 7, RecoveryOutcome.CONFIRMED),
        ([finding(7)], 8, RecoveryOutcome.CONFIRMED),
    ],
)
def test_outcome_depends_on_later_findings(
    found: list[Finding], steps: int, outcome: RecoveryOutcome
) -> None:
    assert OutcomeVerification(window=4).determine_outcome(BACK, found, branch_length=steps) is outcome


def test_end_of_run_overrides_findings() -> None:
    assert (
        OutcomeVerification().determine_outcome(BACK, [finding(4)], branch_length=5, is_accepted=True)
        is RecoveryOutcome.CONFIRMED
    )
    assert (
        OutcomeVerification().determine_outcome(BACK, [], branch_length=20, is_accepted=False)
        is RecoveryOutcome.REFUTED
    )


@pytest.mark.parametrize("wrong", [{"window": 0}, {"threshold": 0}, {"threshold": 1.5}])
def test_settings_are_validated(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="verification"):
        OutcomeVerification(**wrong)  # type: ignore[arg-type]
