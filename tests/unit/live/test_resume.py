"""A run that is gone on with: what it had spent, tried and lost, and what is still to be said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentguard.guard import Guard
from agentguard.live.resume import INTERRUPTED, go_back, leave_unknown, note, taken_away, untold
from agentguard.live.session import Session
from agentguard.localize.last_error import LastError
from agentguard.recover.base import (
    Outcome,
    Plan,
    Recovery,
    Reject,
    Restart,
    Rewind,
    Stop,
    Tell,
    Tier,
    Withhold,
)
from agentguard.recover.budget import Budget
from agentguard.recover.keep import recovery_row
from agentguard.recover.policy import Recover
from agentguard.store import Store
from agentguard.trajectory.model import Source, Step
from tests.unit.live.test_session import CAN, META, loop, turn


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store.open(tmp_path / "s.db") as opened:
        yield opened


def again(store: Store, **recover: Any) -> Session:
    """The session of the run as another process has it."""
    store.flush(10)
    guard = Guard(localizer=LastError(), recover=Recover(**recover), store=store)
    return guard.session(META, CAN, resume=True)


def begun(store: Store, **recover: Any) -> Session:
    guard = Guard(localizer=LastError(), recover=Recover(**recover), store=store)
    session = guard.session(META, CAN)
    session.commit(Step(index=0, source=Source.USER, agent="user", content=META.task))
    return session


def recovery(id: int, *actions: Any, at: int, tier: Tier = Tier.NUDGE, undone: int = 0) -> Recovery:
    plan = Plan(strategy="s", tier=tier, actions=actions, step=at - 1, undone=undone)
    return Recovery(run="r", id=id, plan=plan, trigger="exact_loop", at_step=at)


def test_budgets_and_recoveries_come_back(store: Store) -> None:
    options: dict[str, Any] = {"on_fail": "rollback", "budget": Budget(rollbacks=3, per_step=1)}
    first = begun(store, **options)
    loop(first)
    assert first.boundary() is not None
    second = again(store, **options)
    assert second.account.spent == first.account.spent
    assert second.account.spent.tokens == 200
    assert [second.account.back_to(step) for step in range(5)] == [
        first.account.back_to(step) for step in range(5)
    ]
    assert second.recoveries == first.recoveries
    for session in (first, second):
        loop(session)
    assert second.boundary() == first.boundary(), "it decides as the process would have that did not die"


def test_outcomes_come_back_and_what_failed_is_not_tried_again(store: Store) -> None:
    options: dict[str, Any] = {"on_fail": ["rollback", "drop_tool"]}
    first = begun(store, **options)
    loop(first)
    plan = first.boundary()
    assert plan is not None
    assert plan.strategy == "rollback"
    while first._pending is None:
        loop(first, 1)
    assert first.recoveries[0].outcome is Outcome.REFUTED
    second = again(store, **options)
    assert second.recoveries == first.recoveries
    third = second.boundary()
    assert third is not None, "what was found on the last step is acted upon by the next process"
    assert third == first.boundary()
    assert (third.strategy, third.step) != (plan.strategy, plan.step)
    assert [one.id for one in second.recoveries] == [0, 1]


def test_a_recovery_that_was_made_is_not_made_again(store: Store) -> None:
    first = begun(store, on_fail="nudge")
    loop(first)
    assert first.boundary() is not None
    second = again(store, on_fail=["nudge", "rollback"])
    assert second.boundary() is None, "what was found is what the nudge was about"
    assert len(second.untold) == 1
    assert second.untold == first.untold
    assert second.commit(turn("book", seat=4)).extra["agentguard"]["told"] == list(first.untold)
    assert again(store, on_fail="nudge").untold == ()


def test_an_event_is_stored_as_a_whole_or_not_at_all(store: Store) -> None:
    units: list[tuple[Any, ...]] = []
    real = store._writer.write

    def write(rows: Any, receipt: Any = None) -> Any:
        units.append(rows)
        return real(rows, receipt)

    store._writer.write = write  # type: ignore[method-assign]
    session = begun(store, on_fail="rollback")
    loop(session)
    before = len(units)
    assert session.boundary() is not None
    (unit,) = units[before:]
    assert [type(row).__name__ for row in unit] == ["RecoveryRow", "BranchRow"]


def test_a_stopped_run_stays_stopped(store: Store) -> None:
    first = begun(store, on_fail="stop")
    loop(first)
    first.boundary()
    assert first.stopped is not None
    assert again(store, on_fail="stop").stopped == first.stopped


def test_a_run_that_has_ended_stays_ended(store: Store) -> None:
    first = begun(store)
    first.commit(turn(where="window"))
    assert first.end() is None
    second = again(store)
    assert second.ended
    assert again(store).ended, "and is not begun anew by being looked at"
    assert second.end() is None


def test_a_run_begun_anew_under_its_id_replaces_what_was_stored(store: Store) -> None:
    loop(begun(store, on_fail="nudge"), 3)
    begun(store, on_fail="nudge")
    assert len(again(store)) == 1


def test_rows_that_no_guard_wrote_are_left_out(store: Store) -> None:
    from agentguard.store.rows import RecoveryRow

    first = begun(store, on_fail="nudge")
    loop(first)
    first.boundary()
    store.write(RecoveryRow(run_id="r", strategy="by hand"))
    assert again(store).recoveries == first.recoveries


def test_what_is_untold_is_what_was_said_since_the_last_step() -> None:
    nudge = recovery(0, Tell(text="a"), at=4)
    refused = recovery(1, Reject(), Tell(text="b"), at=5, tier=Tier.REJECT, undone=1)
    back = recovery(2, Rewind(to_step=4, by="truncate"), Tell(text="c"), at=7, tier=Tier.TRUNCATE, undone=3)
    assert untold([nudge], 4) == ["a"]
    assert untold([nudge], 5) == []
    assert untold([nudge, refused], 4) == ["a", "b"]
    assert untold([nudge, refused, back], 4) == ["c"], "what was said before it went with the line"
    assert untold([], 0) == []


def test_what_a_run_has_lost_and_what_its_task_was_given() -> None:
    session = Guard(localizer=LastError()).session(META, CAN)
    session.recoveries += [
        recovery(0, Withhold(tools=("find",)), at=2),
        recovery(1, Restart(note="first"), at=3, tier=Tier.RESTART, undone=3),
        recovery(2, Withhold(tools=("book", "find")), Restart(note="second"), at=3, undone=3),
    ]
    assert taken_away(session) == {"find", "book"}
    assert note(session) == "second"


def test_the_agent_is_told_what_is_lost_and_what_stands() -> None:
    session = Guard(localizer=LastError(), tools={}).session(META, CAN)
    for seat in (4, 5):
        claim = session.begin_tool("book", {"seat": seat})
        session.end_tool(claim, "yours")
        session.commit(turn("book", "yours", seat=seat))
    go_back(session, 1)
    assert len(session) == 1
    assert session.run.branches[0].reason == INTERRUPTED
    (said,) = session.untold
    assert "1 later steps are lost" in said
    assert 'book({"seat":5}) returned yours' in said
    assert '"seat":4' not in said
    again_claim = session.begin_tool("book", {"seat": 5})
    assert again_claim.ruling.value == "reuse"


def test_steps_that_a_framework_does_not_have_are_left() -> None:
    session = Guard(localizer=LastError()).session(META, CAN)
    for where in "abc":
        session.commit(turn(where=where))
    leave_unknown(session, [turn(where="a"), turn(where="x")])
    assert len(session) == 3, "somebody else has rewritten them"
    leave_unknown(session, [turn(where="a"), turn(seen="repaired", where="b")])
    assert len(session) == 2
    assert session.untold == ()
    leave_unknown(session, [turn(where=where) for where in "abcd"])
    assert len(session) == 2


def test_a_stop_of_an_earlier_process_is_read_from_its_recovery(store: Store) -> None:
    first = begun(store)
    store.write(recovery_row(recovery(0, Stop(reason="enough"), at=1, tier=Tier.STOP)))
    first.commit(turn())
    assert again(store).stopped == "enough"
