"""A session detects, plans, keeps the record correct, and survives failures of its parts."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest

from agentguard.detect.base import DetectorFailure, Finding
from agentguard.guard import Guard
from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.recover.actions import Reject, Rewind, SendMessage, Stop
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.capabilities import Capabilities
from agentguard.recover.plan import RecoveryOutcome, RecoveryTier
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.runtime.session import Session
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec, Trajectory, Usage
from agentguard.verdict import Verdict

META = Trajectory(
    id="r",
    format="event_log",
    task="Find a seat by the aisle and book it.",
    steps=(),
    tools=(
        ToolSpec(name="find", parameters={"type": "object", "properties": {"where": {"type": "string"}}}),
        ToolSpec(name="book"),
    ),
)
CAN = Capabilities(reject=True, truncate=True, restart=True)


class Ranks:
    """A localizer that always ranks these steps first."""

    name = "ranks"

    def __init__(self, *steps: int) -> None:
        self.steps = steps

    def locate(self, trajectory: Trajectory, findings: Any) -> Diagnosis:
        ranked = tuple(Hypothesis(step=step, agent="clerk", reason="ranked") for step in self.steps)
        return Diagnosis(
            trajectory_id=trajectory.id,
            method="ranks",
            verdict=Verdict.FAILED,
            probability=1,
            hypotheses=ranked,
        )


def begin(
    *, can: Capabilities = CAN, accept: Any = None, ranks: tuple[int, ...] = (), **recover: Any
) -> Session:
    guard = Guard(localizer=Ranks(*ranks), recover=RecoveryPolicy(**recover), accept=accept)
    session = guard.session(META, can)
    session.commit(Step(index=0, source=Source.USER, agent="user", content=META.task))
    return session


def turn(tool: str = "find", seen: str | None = "no seat", **arguments: Any) -> Step:
    call = ToolCall(id="c", name=tool, arguments=arguments or {"where": "aisle"})
    found = () if seen is None else (Observation(content=seen, call_id="c", tool=tool),)
    return Step(
        index=0,
        source=Source.AGENT,
        agent="clerk",
        tool_calls=(call,),
        observations=found,
        usage=Usage(prompt_tokens=90, completion_tokens=10),
    )


def loop(session: Session, times: int = 3) -> None:
    for _ in range(times):
        session.commit(turn())


def test_clean_run_is_unchanged() -> None:
    session = begin()
    for place in ("aisle", "window", "front"):
        assert session.check_boundary() is None
        assert session.propose(turn(seen=None, where=place)) is None
        session.commit(turn(seen=f"seat by the {place}", where=place))
    session.commit(
        Step(index=0, source=Source.AGENT, agent="clerk", content="The seat by the aisle is free.")
    )
    assert session.end() is None
    assert (session.has_ended, session.recoveries, session.run.branches) == (True, [], ())


def play_loop(*, is_released: bool) -> Session:
    """Propose and commit the same turn until a plan comes; optionally release the detectors at each event."""
    session = begin()
    for _ in range(4):
        session.check_boundary()
        for event in (session.propose, session.commit):
            if is_released:
                session.release_detectors()
            event(turn(seen=None) if event == session.propose else turn())
    session.check_boundary()
    return session


def test_released_detectors_find_the_same_after_a_replay() -> None:
    kept, released = play_loop(is_released=False), play_loop(is_released=True)
    assert kept.findings
    assert released.findings == kept.findings
    assert [one.plan for one in released.recoveries] == [one.plan for one in kept.recoveries]
    assert (released.failures, released.run) == ([], replace(kept.run, steps=released.run.steps))


def test_detectors_of_a_long_run_are_not_released() -> None:
    session = begin()
    loop(session, 40)
    before = session._detector_runner
    session.release_detectors()
    assert session._detector_runner is before


def test_detectors_with_a_failure_are_not_released() -> None:
    session = begin()
    assert session._detector_runner is not None
    session._detector_runner.failures.append(DetectorFailure(detector="d", step=0, error="ValueError"))
    session.release_detectors()
    assert session._detector_runner is not None


def test_turn_has_the_times_between_its_boundary_and_its_commit() -> None:
    session = begin()
    times = iter([100.0, 107.5])
    session.config = replace(session.config, clock=lambda: next(times))
    session.check_boundary()
    turn = Step(index=0, source=Source.AGENT, agent="clerk", content="I look.")
    step = session.commit(turn)
    assert (step.started_at, step.ended_at) == (100.0, 107.5)
    history = session.commit(turn)  # without a boundary, the turn is part of the client's history
    assert (history.started_at, history.ended_at) == (None, None)


def test_turn_after_a_refused_end_has_its_times_without_another_boundary() -> None:
    session = begin(accept=lambda run: run.steps[-1].content == "Seat 5.", on_fail="hint")
    times = iter([100.0, 101.0, 102.0, 105.0])
    session.config = replace(session.config, clock=lambda: next(times))
    session.check_boundary()
    session.commit(Step(index=0, source=Source.AGENT, agent="clerk", content="No idea."))
    assert session.end() is not None
    step = session.commit(Step(index=0, source=Source.AGENT, agent="clerk", content="Seat 5."))
    assert (step.started_at, step.ended_at) == (102.0, 105.0)


def test_recorded_times_of_a_turn_win() -> None:
    session = begin()
    session.check_boundary()
    turn = Step(index=0, source=Source.AGENT, agent="clerk", content="I look.", started_at=1.0, ended_at=2.0)
    assert session.commit(turn).ended_at == 2.0


def test_loop_is_rolled_back_and_record_branches() -> None:
    session = begin(on_fail="rollback")
    loop(session)
    plan = session.check_boundary()
    assert plan is not None
    assert plan.actions[0] == Rewind(to_step=2, by="truncate")
    assert len(session) == 2
    (branch,) = session.run.branches
    assert (branch.fork_step, len(branch.steps)) == (2, 2)
    assert session.account.usage.tokens == 200
    step = session.commit(turn(seen="seat 4 is free", where="front"))
    assert step.index == 2
    assert "rolled back" in step.extra["agentguard"]["told"][0]


def test_recovery_is_confirmed_if_loop_does_not_recur() -> None:
    session = begin(on_fail="rollback")
    loop(session)
    session.check_boundary()
    for place in ("front", "back", "left", "right"):
        session.commit(turn(seen=f"seat in the {place}", where=place))
        session.check_boundary()
    assert [recovery.outcome for recovery in session.recoveries] == [RecoveryOutcome.CONFIRMED]


def test_recovery_is_refuted_if_loop_recurs_and_next_hypothesis_is_tried() -> None:
    session = begin(on_fail="rollback", ranks=(1,), budget=RecoveryBudget(rollbacks=3, rollbacks_per_step=1))
    loop(session)
    session.check_boundary()
    loop(session, 2)
    plan = session.check_boundary()
    assert plan is not None
    assert (plan.step, plan.hypothesis) == (1, 1)
    assert [recovery.outcome for recovery in session.recoveries] == [
        RecoveryOutcome.REFUTED,
        RecoveryOutcome.PENDING,
    ]


def test_exhausted_budget_stops_recovery() -> None:
    session = begin(on_fail="rollback", budget=RecoveryBudget(rollbacks=1))
    for _ in range(5):
        loop(session)
        session.check_boundary()
    assert len(session.recoveries) == 1


def test_turn_is_refused_before_its_tools_run() -> None:
    session = begin(on_fail="rollback")
    plan = session.propose(turn("buy", seen=None))
    assert plan is not None
    assert isinstance(plan.actions[0], Reject)
    assert plan.tier is RecoveryTier.REJECT
    assert len(session) == 1
    assert session.run.branches[0].steps[0].tool_calls[0].name == "buy"
    assert session.propose(turn("find", seen=None)) is None


def test_unrefusable_turn_is_handled_at_the_boundary() -> None:
    session = begin(on_fail="hint")
    assert session.propose(turn("buy", seen=None)) is None
    session.commit(turn("buy", seen="unknown tool"))
    plan = session.check_boundary()
    assert plan is not None
    assert isinstance(plan.actions[0], SendMessage)
    assert len(session) == 2
    assert session.check_boundary() is None


def test_stop_before_tools_ends_the_run() -> None:
    session = begin(on_fail="stop")
    plan = session.propose(turn("buy", seen=None))
    assert plan is not None
    assert isinstance(plan.actions[0], Stop)
    assert session.stop_reason
    assert session.end() is None


def test_unaccepted_end_is_rejected_with_reason() -> None:
    verdicts = iter(["no seat was booked", True])
    session = begin(accept=lambda run: next(verdicts), on_fail="rollback", ranks=(1,))
    session.commit(turn(seen="seat 4 is free"))
    session.commit(Step(index=0, source=Source.AGENT, agent="clerk", content="Done."))
    plan = session.end()
    assert plan is not None
    assert plan.step == 1, "where it went wrong is the localizer's to say, not the end of the run"
    assert not session.has_ended
    session.commit(turn("book", seen="booked"))
    assert session.end() is None
    assert session.has_ended
    assert session.recoveries[0].outcome is RecoveryOutcome.CONFIRMED


def test_rejected_end_without_remaining_strategy_ends_the_run() -> None:
    session = begin(
        accept=lambda run: False, on_fail="rollback", ranks=(1,), budget=RecoveryBudget(rollbacks=1)
    )
    session.commit(turn(seen="seat 4 is free"))
    assert session.end() is not None
    session.commit(turn(seen="seat 4 is free"))
    assert session.end() is None
    assert session.recoveries[0].outcome is RecoveryOutcome.REFUTED


@pytest.mark.parametrize(("on_error", "stopped"), [("fail_open", False), ("fail_closed", True)])
def test_failing_part_is_noted(on_error: str, stopped: bool) -> None:
    def accept(run: Trajectory) -> bool:
        raise KeyError("text of the run")

    session = begin(accept=accept, on_guard_error=on_error)
    session.commit(turn(seen="seat 4 is free"))
    assert session.end() is None
    assert [failure.error for failure in session.failures] == ["KeyError"]
    assert (session.stop_reason is not None) is stopped
    assert "text" not in (session.stop_reason or "")


def test_observers_receive_plan_and_outcome() -> None:
    seen: list[RecoveryOutcome] = []
    guard = Guard(
        localizer=Ranks(),
        recover=RecoveryPolicy(on_fail="hint"),
        observers=[lambda recovery: seen.append(recovery.outcome)],
    )
    session = guard.session(META, CAN)
    session.commit(Step(index=0, source=Source.USER, agent="user", content=META.task))
    loop(session)
    session.check_boundary()
    session.commit(turn(seen="seat 4 is free", where="front"))
    session.end()
    assert seen == [RecoveryOutcome.PENDING, RecoveryOutcome.CONFIRMED]


def test_loop_that_ignores_hint_and_ends_is_not_confirmed() -> None:
    session = begin(on_fail="hint")
    loop(session)
    session.check_boundary()
    loop(session, 5)
    session.commit(Step(index=0, source=Source.AGENT, agent="clerk", content="I give up."))
    session.end()
    assert [one.outcome for one in session.recoveries] == [RecoveryOutcome.REFUTED]


def test_run_that_gives_up_after_hint_has_unknown_outcome() -> None:
    session = begin(on_fail="hint")
    loop(session)
    session.check_boundary()
    session.commit(Step(index=0, source=Source.AGENT, agent="clerk", content="I give up."))
    session.end()
    assert [one.outcome for one in session.recoveries] == [RecoveryOutcome.UNKNOWN]


def test_repeated_rejected_call_refutes_the_rejection() -> None:
    session = begin(on_fail="reprompt")
    unknown = turn(tool="fly", seen=None)
    assert session.propose(unknown) is not None
    session.commit(turn(tool="fly", seen="there is no tool fly"))
    assert [one.outcome for one in session.recoveries] == [RecoveryOutcome.REFUTED]


def test_default_policy_stops_a_loop_within_a_bounded_number_of_turns() -> None:
    session = begin()
    turns = 0
    while session.stop_reason is None:
        session.check_boundary()
        if session.stop_reason is None:
            session.commit(turn())
            turns += 1
        assert turns < 20
    assert "exact_loop" in {one.trigger for one in session.recoveries}
    assert RecoveryOutcome.CONFIRMED not in {one.outcome for one in session.recoveries}


def test_findings_of_abandoned_branch_are_removed() -> None:
    session = begin(on_fail="rollback")
    loop(session)
    assert any(finding.detector == "exact_loop" for finding in session.findings)
    session.check_boundary()
    assert not any(finding.detector == "exact_loop" for finding in session.findings)


def test_override_applies_only_to_new_runs() -> None:
    guard = Guard(localizer=Ranks(), recover=RecoveryPolicy(on_fail="stop"))
    with guard.override(recover=RecoveryPolicy(on_fail="hint"), detectors={"exact_loop": None}):
        inside = guard.session(META, CAN)
        assert list(guard.detectors or ()) == ["exact_loop"]
    outside = guard.session(META, CAN)
    plans = []
    for session in (inside, outside):
        loop(session)
        plan = session.check_boundary()
        assert plan is not None
        plans.append(plan.strategy)
    assert plans == ["hint", "stop"]
    assert guard.detectors is None


def test_finding_below_threshold_triggers_nothing() -> None:
    session = begin(on_fail="stop", threshold=0.99)
    loop(session)
    assert session.findings
    assert session.check_boundary() is None


def test_guard_time_is_recorded() -> None:
    session = begin()
    loop(session)
    assert session.overhead_s > 0
    assert all(isinstance(finding, Finding) for finding in session.findings)


def test_unreferenced_session_is_freed_without_garbage_collection() -> None:
    """A proxy ends hundreds per second: sessions that wait for the collector would dominate its memory."""
    session = begin(on_fail=["hint", "rollback"])
    for at in range(6):
        session.check_boundary()
        session.propose(turn())
        session.commit(turn(at=at))
        session.commit(turn())
    assert session.findings
    session.end()
    watched = [weakref.ref(one) for one in (session, session.recorder, session.ledger)]
    gc.collect()
    gc.disable()
    try:
        del session
        assert [one() for one in watched] == [None] * 3
    finally:
        gc.enable()
