"""A recovery is confirmed by a new outcome, refuted by a recurrence, and else of unknown outcome."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentguard.detect.base import Finding
from agentguard.errors import ConfigError
from agentguard.recover.actions import Restart, Rewind, SendMessage
from agentguard.recover.outcome_verification import OutcomeVerification, get_resume_step
from agentguard.recover.plan import Recovery, RecoveryOutcome, RecoveryPlan, RecoveryTier
from agentguard.trajectory.model import Branch, Observation, Source, Step, ToolCall, Trajectory

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
    step: int,
    *,
    detector: str = "exact_loop",
    code: str = "mast:x",
    probability: float = 0.9,
    noticed_at: int | None = None,
) -> Finding:
    return Finding(
        detector=detector,
        step=step,
        codes=(code,),
        probability=probability,
        message="again",
        noticed_at=noticed_at,
    )


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


def build_run(steps: int, *, results: str = "result {}", before: int = 3) -> Trajectory:
    """Build a run; each step from ``before`` on has its own result by default."""
    return Trajectory(
        id="r",
        format="event_log",
        task="t",
        steps=tuple(
            Step(
                index=index,
                source=Source.AGENT,
                agent="clerk",
                tool_calls=(ToolCall(id="c", name="find", arguments={"step": index}),),
                observations=(
                    Observation(content="no seat" if index < before else results.format(index), call_id="c"),
                ),
            )
            for index in range(steps)
        ),
    )


@pytest.mark.parametrize(
    ("found", "steps", "outcome"),
    [
        ([], 4, RecoveryOutcome.PENDING),
        ([], 7, RecoveryOutcome.CONFIRMED),
        ([finding(5)], 6, RecoveryOutcome.REFUTED),
        ([finding(1, noticed_at=5)], 6, RecoveryOutcome.REFUTED),
        ([finding(5, probability=0.2)], 6, RecoveryOutcome.REFUTED),
        ([finding(5, detector="other", code=CODE)], 6, RecoveryOutcome.REFUTED),
        ([finding(5, detector="other", code=CODE, probability=0.2)], 7, RecoveryOutcome.CONFIRMED),
        ([finding(5, detector="other")], 7, RecoveryOutcome.CONFIRMED),
        ([finding(2)], 7, RecoveryOutcome.CONFIRMED),
        ([finding(7)], 8, RecoveryOutcome.CONFIRMED),
    ],
)
def test_outcome_depends_on_later_findings(
    found: list[Finding], steps: int, outcome: RecoveryOutcome
) -> None:
    verification = OutcomeVerification(window=4)
    assert verification.determine_outcome(BACK, found, build_run(steps)) is outcome


@pytest.mark.parametrize("results", ["no seat", "Error: timed out", ""])
def test_window_without_new_usable_result_is_unknown(results: str) -> None:
    run = build_run(7, results=results)
    assert OutcomeVerification(window=4).determine_outcome(BACK, [], run) is RecoveryOutcome.UNKNOWN


def test_result_of_abandoned_branch_is_not_new() -> None:
    again = build_run(7, results="seat 4")
    branch = Branch(id="b", fork_step=3, steps=build_run(5, results="seat 4").steps[3:])
    run = replace(again, branches=(branch,))
    assert OutcomeVerification(window=4).determine_outcome(BACK, [], run) is RecoveryOutcome.UNKNOWN


@pytest.mark.parametrize(("steps", "outcome"), [(3, RecoveryOutcome.UNKNOWN), (4, RecoveryOutcome.CONFIRMED)])
def test_end_confirms_only_with_a_new_result(steps: int, outcome: RecoveryOutcome) -> None:
    verification = OutcomeVerification(window=4)
    assert verification.determine_outcome(BACK, [], build_run(steps), is_final=True) is outcome


def test_acceptance_overrides_findings() -> None:
    verification = OutcomeVerification()
    run = build_run(5)
    accepted = verification.determine_outcome(BACK, [finding(4)], run, is_accepted=True)
    assert accepted is RecoveryOutcome.CONFIRMED
    assert verification.determine_outcome(BACK, [], run, is_accepted=False) is RecoveryOutcome.REFUTED


@pytest.mark.parametrize("wrong", [{"window": 0}, {"threshold": 0}, {"threshold": 1.5}])
def test_settings_are_validated(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="verification"):
        OutcomeVerification(**wrong)  # type: ignore[arg-type]
