"""Resumption of a run: its spent budget, tried strategies, lost steps, and pending hints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentguard.guard import Guard
from agentguard.localize.baselines.last_error import LastErrorLocalizer
from agentguard.recover.actions import DisableTools, Reject, Restart, Rewind, SendMessage, Stop
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.plan import Recovery, RecoveryOutcome, RecoveryPlan, RecoveryTier
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.recover.recovery_rows import to_recovery_row
from agentguard.runtime.resumption import (
    INTERRUPTION_REASON,
    discard_unknown_steps,
    get_restart_note,
    list_disabled_tools,
    list_pending_messages,
    rewind_to_saved_state,
)
from agentguard.runtime.session import Session
from agentguard.store import Store
from agentguard.trajectory.model import Source, Step
from tests.unit.runtime.test_session import CAN, META, loop, turn


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store.open(tmp_path / "s.db") as opened:
        yield opened


def again(store: Store, **recover: Any) -> Session:
    """Return the session of the run in another process."""
    store.flush(10)
    guard = Guard(localizer=LastErrorLocalizer(), recover=RecoveryPolicy(**recover), store=store)
    return guard.session(META, CAN, resume=True)


def begun(store: Store, **recover: Any) -> Session:
    guard = Guard(localizer=LastErrorLocalizer(), recover=RecoveryPolicy(**recover), store=store)
    session = guard.session(META, CAN)
    session.commit(Step(index=0, source=Source.USER, agent="user", content=META.task))
    return session


def recovery(
    id: int, *actions: Any, at: int, tier: RecoveryTier = RecoveryTier.HINT, undone: int = 0
) -> Recovery:
    plan = RecoveryPlan(strategy="s", tier=tier, actions=actions, step=at - 1, undone=undone)
    return Recovery(run="r", id=id, plan=plan, trigger="exact_loop", at_step=at)


def test_budgets_and_recoveries_are_restored(store: Store) -> None:
    options: dict[str, Any] = {
        "on_fail": "rollback",
        "budget": RecoveryBudget(rollbacks=3, rollbacks_per_step=1),
    }
    first = begun(store, **options)
    loop(first)
    assert first.check_boundary() is not None
    second = again(store, **options)
    assert second.account.usage == first.account.usage
    assert second.account.usage.tokens == 200
    assert [second.account.count_rollbacks_to(step) for step in range(5)] == [
        first.account.count_rollbacks_to(step) for step in range(5)
    ]
    assert second.recoveries == first.recoveries
    for session in (first, second):
        loop(session)
    assert second.check_boundary() == first.check_boundary(), (
        "it decides as the process would have that did not die"
    )


def test_outcomes_are_restored_and_failed_plans_are_not_repeated(store: Store) -> None:
    options: dict[str, Any] = {"on_fail": ["rollback", "disable_tool"]}
    first = begun(store, **options)
    loop(first)
    plan = first.check_boundary()
    assert plan is not None
    assert plan.strategy == "rollback"
    while first.pending_trigger is None:
        loop(first, 1)
    assert first.recoveries[0].outcome is RecoveryOutcome.REFUTED
    second = again(store, **options)
    assert second.recoveries == first.recoveries
    third = second.check_boundary()
    assert third is not None, "what was found on the last step is acted upon by the next process"
    assert third == first.check_boundary()
    assert (third.strategy, third.step) != (plan.strategy, plan.step)
    assert [one.id for one in second.recoveries] == [0, 1]


def test_executed_recovery_is_not_repeated(store: Store) -> None:
    first = begun(store, on_fail="hint")
    loop(first)
    assert first.check_boundary() is not None
    second = again(store, on_fail=["hint", "rollback"])
    assert second.check_boundary() is None, "what was found is what the hint was about"
    assert len(second.pending_messages) == 1
    assert second.pending_messages == first.pending_messages
    assert second.commit(turn("book", seat=4)).extra["agentguard"]["told"] == list(first.pending_messages)
    assert again(store, on_fail="hint").pending_messages == ()


def test_event_is_stored_atomically(store: Store) -> None:
    units: list[tuple[Any, ...]] = []
    real = store._writer.write

    def write(rows: Any, receipt: Any = None) -> Any:
        units.append(rows)
        return real(rows, receipt)

    store._writer.write = write  # type: ignore[method-assign]
    session = begun(store, on_fail="rollback")
    loop(session)
    before = len(units)
    assert session.check_boundary() is not None
    (unit,) = units[before:]
    assert [type(row).__name__ for row in unit] == ["RecoveryRow", "BranchRow"]


def test_stopped_run_stays_stopped(store: Store) -> None:
    first = begun(store, on_fail="stop")
    loop(first)
    first.check_boundary()
    assert first.stop_reason is not None
    assert again(store, on_fail="stop").stop_reason == first.stop_reason


def test_ended_run_stays_ended(store: Store) -> None:
    first = begun(store)
    first.commit(turn(where="window"))
    assert first.end() is None
    second = again(store)
    assert second.has_ended
    assert again(store).has_ended, "and is not begun anew by being looked at"
    assert second.end() is None


def test_restarted_run_with_same_id_replaces_stored_run(store: Store) -> None:
    loop(begun(store, on_fail="hint"), 3)
    begun(store, on_fail="hint")
    assert len(again(store)) == 1


def test_foreign_rows_are_ignored(store: Store) -> None:
    from agentguard.store.db.rows import RecoveryRow

    first = begun(store, on_fail="hint")
    loop(first)
    first.check_boundary()
    store.write(RecoveryRow(run_id="r", strategy="by hand"))
    assert again(store).recoveries == first.recoveries


def test_pending_messages_are_those_since_the_last_step() -> None:
    hint = recovery(0, SendMessage(text="a"), at=4)
    refused = recovery(1, Reject(), SendMessage(text="b"), at=5, tier=RecoveryTier.REJECT, undone=1)
    back = recovery(
        2, Rewind(to_step=4, by="truncate"), SendMessage(text="c"), at=7, tier=RecoveryTier.TRUNCATE, undone=3
    )
    assert list_pending_messages([hint], 4) == ["a"]
    assert list_pending_messages([hint], 5) == []
    assert list_pending_messages([hint, refused], 4) == ["a", "b"]
    assert list_pending_messages([hint, refused, back], 4) == ["c"], (
        "what was said before it went with the line"
    )
    assert list_pending_messages([], 0) == []


def test_disabled_tools_and_restart_note_are_restored() -> None:
    session = Guard(localizer=LastErrorLocalizer()).session(META, CAN)
    session.recoveries += [
        recovery(0, DisableTools(tools=("find",)), at=2),
        recovery(1, Restart(note="first"), at=3, tier=RecoveryTier.RESTART, undone=3),
        recovery(2, DisableTools(tools=("book", "find")), Restart(note="second"), at=3, undone=3),
    ]
    assert list_disabled_tools(session) == {"find", "book"}
    assert get_restart_note(session) == "second"


def test_agent_is_informed_of_lost_steps_and_remaining_effects() -> None:
    session = Guard(localizer=LastErrorLocalizer(), tools={}).session(META, CAN)
    for seat in (4, 5):
        claim = session.begin_tool("book", {"seat": seat})
        session.end_tool(claim, "yours")
        session.commit(turn("book", "yours", seat=seat))
    rewind_to_saved_state(session, 1)
    assert len(session) == 1
    assert session.run.branches[0].reason == INTERRUPTION_REASON
    (said,) = session.pending_messages
    assert "Lost steps: 1" in said
    assert 'book({"seat":5}) returned yours' in said
    assert '"seat":4' not in said
    again_claim = session.begin_tool("book", {"seat": 5})
    assert again_claim.decision.value == "reuse"


def test_steps_missing_in_the_framework_are_abandoned() -> None:
    session = Guard(localizer=LastErrorLocalizer()).session(META, CAN)
    for where in "abc":
        session.commit(turn(where=where))
    discard_unknown_steps(session, [turn(where="a"), turn(where="x")])
    assert len(session) == 3, "somebody else has rewritten them"
    discard_unknown_steps(session, [turn(where="a"), turn(seen="repaired", where="b")])
    assert len(session) == 2
    assert session.pending_messages == ()
    discard_unknown_steps(session, [turn(where=where) for where in "abcd"])
    assert len(session) == 2


def test_stop_of_an_earlier_process_is_read_from_its_recovery(store: Store) -> None:
    first = begun(store)
    store.write(to_recovery_row(recovery(0, Stop(reason="enough"), at=1, tier=RecoveryTier.STOP)))
    first.commit(turn())
    assert again(store).stop_reason == "enough"
