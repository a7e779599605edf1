"""Snapshots of a loop's environment: saved at boundaries, restored by forks and after a crash."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentguard.errors import ConfigError
from agentguard.guard import Guard
from agentguard.localize.baselines.last_error import LastErrorLocalizer
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.recover.snapshots.manager import SnapshotOptions
from agentguard.runtime.resumption import INTERRUPTION_REASON
from agentguard.store import Store
from agentguard.store.options import StoreOptions
from tests.faults.guarded_child import ROLLBACKS, SEATS, Hall, agent, guarded

TICKS = itertools.count()
DEAR = SnapshotOptions(clock=lambda: float(next(TICKS)))
"""Each read of the clock takes a second: a snapshot costs as much as a turn."""
EACH = SnapshotOptions(max_turns=1)


def counting(**options: Any) -> tuple[Any, dict[str, Any]]:
    """Return a run with a counting tool and a loop that a fork removes."""
    state: dict[str, Any] = {"at": 0}

    def move(by: int) -> str:
        """Move."""
        state["at"] += by
        return "still no seat"

    guard = Guard(
        localizer=LastErrorLocalizer(), recover=RecoveryPolicy(on_fail=options.pop("on_fail", "rollback"))
    )
    guard.tool(effect="read")(move)
    options = {"save": lambda: dict(state), "restore": state.update, "snapshots": EACH, **options}
    return guard.run("Move.", tools=[move], **options), state


def moves(*by: int) -> Any:
    """Return a model that makes the given moves, then ends; it records its input."""
    given = iter(by)

    def model(messages: list[dict[str, Any]]) -> Any:
        model.seen = [str(m["content"]) for m in messages]  # type: ignore[attr-defined]
        n = next(given, None)
        if n is None:
            return "Done."
        function = {"name": "move", "arguments": f'{{"by": {n}}}'}
        return {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}

    return model


def drive(run: Any, model: Any) -> None:
    while not run.done:
        run.tools(run.model(model))


FORK = [{"rollback": {"prefer": "fork"}}]


def test_fork_goes_to_nearest_snapshot_and_reports_it() -> None:
    run, state = counting(on_fail=FORK, snapshots=DEAR)
    model = moves(1, 2, 3, 7, 7, 7)
    drive(run, model)
    (recovery,) = run.recoveries
    back = recovery.plan.actions[0].to_step
    assert recovery.plan.step == 5, "the second of three equal calls"
    assert back < 5, "it was not saved there"
    assert recovery.plan.undone == 7 - back == recovery.cost["steps"]
    assert f"because step {5 - back + 1} after this point led to a failure" in model.seen[-1]
    assert len(run.trajectory.branches[0].steps) == recovery.plan.undone
    assert state["at"] == sum((1, 2, 3)[: back - 1]), "the state is that of the boundary it went back to"


def test_fork_without_earlier_snapshot_truncates_messages() -> None:
    run, state = counting(on_fail=FORK, snapshots=SnapshotOptions(max_bytes=8, max_turns=1))
    drive(run, moves(7, 7, 7))
    assert run.recoveries[0].plan.actions[0].by == "truncate"
    assert state["at"] == 21
    assert run._snapshots._snapshot_manager.history.rejected_count > 0


def test_truncation_saves_the_current_state() -> None:
    run, _ = counting(on_fail="rollback")
    model = moves(7, 7, 7, 1)
    while not run.recoveries:
        run.tools(run.model(model))
    back = run.recoveries[0].plan.actions[0]
    assert back.by == "truncate"
    assert back.to_step in run._snapshots.saved_steps
    saved = run._snapshots._snapshot_manager.history.get(back.to_step)
    assert saved == b'j{"at":21}', "messages were cut; what was done stays done"


def test_restart_restores_the_first_state() -> None:
    run, state = counting(on_fail="restart")
    drive(run, moves(7, 7, 7, 1))
    assert run.recoveries[0].plan.strategy == "restart"
    assert state["at"] == 1
    assert run.messages[0]["content"].startswith("Move.\n\n[guard] An earlier attempt failed.")


def test_snapshots_of_ended_run_are_deleted(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        state = {"at": 0}
        guard = Guard(localizer=LastErrorLocalizer(), store=store)
        with guard.run("x", save=lambda: state, restore=state.update) as run:
            run.model(lambda messages: "Done.")
            store.flush(10)
            assert len(store.list_snapshots(run.session.id)) == 1
        store.flush(10)
        assert store.list_snapshots(run.session.id) == ()


def test_unsaveable_state_is_an_error_at_start_and_noted_later() -> None:
    run, _ = counting(save=lambda: {1, 2}, restore=print)
    with pytest.raises(ConfigError, match="codec='pickle'"):
        run.model(moves())
    states = iter([{"a": 1}])
    run, _ = counting(save=lambda: next(states, {1, 2}), restore=print)
    drive(run, moves(1, 2))
    assert {failure.error for failure in run.session.failures} == {"ConfigError"}
    assert run.answer == "Done.", "the run goes on"


def test_invalid_arguments_are_rejected() -> None:
    for wrong in ({"save": dict}, {"restore": print}, {"snapshots": SnapshotOptions()}):
        with pytest.raises(ConfigError, match="both save and restore"):
            Guard().run("x", **wrong)
    with pytest.raises(ConfigError, match="codec is 'marshal'"):
        Guard().run("x", save=dict, restore=print, snapshots=SnapshotOptions(codec="marshal"))


def test_pickle_codec_saves_any_object() -> None:
    state = {"seen": {(1, 2)}}
    run, _ = counting(
        on_fail=FORK,
        save=lambda: state,
        restore=lambda saved: state.update(restored=saved),
        snapshots=SnapshotOptions(codec="pickle", max_turns=1),
    )
    drive(run, moves(7, 7, 7))
    assert state["restored"] == {"seen": {(1, 2)}}


def test_unavailable_store_does_not_block_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    options = StoreOptions(max_rows=20, max_bytes=100_000)
    store = Store.open(tmp_path / "file" / "s.db", connect=False, options=options)
    try:
        state = {"at": 0, "text": "x" * 2000}
        guard = Guard(localizer=LastErrorLocalizer(), store=store)
        guard.tool(effect="read", name="move")(len)

        def move(by: int) -> str:
            """Move."""
            state["at"] += by
            return f"at {state['at']}"

        with guard.run("x", tools=[move], save=lambda: state, restore=state.update) as run:
            drive(run, moves(*range(1, 60)))
        assert run.answer == "Done."
        assert state["at"] == sum(range(1, 60))
        health = store.get_health()
        assert health.pending <= 20
        assert health.pending_bytes <= 100_000
        assert health.lost > 40
    finally:
        store.close(0.1)


def test_concurrent_runs_keep_separate_states(tmp_path: Path) -> None:
    async def one(store: Store, number: int) -> tuple[int, int]:
        state = {"at": 0}
        guard = Guard(localizer=LastErrorLocalizer(), recover=RecoveryPolicy(on_fail=FORK), store=store)

        async def move(by: int) -> str:
            """Move."""
            await asyncio.sleep(0)
            state["at"] += by
            return "still no seat"

        guard.tool(effect="read", name="move")(move)
        run = guard.run(
            "x", tools=[move], id=f"r{number}", save=lambda: state, restore=state.update, snapshots=EACH
        )
        model = moves(number, number, number, 1)

        async def amodel(messages: list[dict[str, Any]]) -> Any:
            await asyncio.sleep(0)
            return model(messages)

        while not run.done:
            await run.atools(await run.amodel(amodel))
        return run.recoveries[0].plan.undone, state["at"]

    async def main(store: Store) -> list[tuple[int, int]]:
        return await asyncio.gather(*(one(store, number) for number in range(2, 10)))

    with Store.open(tmp_path / "s.db") as store:
        assert asyncio.run(main(store)) == [(2, number + 1) for number in range(2, 10)]
        store.flush(10)
        assert store.get_stats().rows["snapshots"] == 0


class Tape:
    """Record of all durable writes of a process, in order; a crash keeps a prefix of it.

    Asynchronous rows may lag: some of the last row batches may be missing, while later claims exist.
    """

    def __init__(self, store: Store) -> None:
        self.entries: list[tuple[str, Any]] = []
        self.seats: Counter[int] = Counter()
        writer, claim, settle = store._writer.write, store.claim, store.settle

        def write(rows: Any, receipt: Any = None) -> Any:
            self.entries.append(("rows", rows))
            return writer(rows, receipt)

        def claimed(effect: Any) -> Any:
            self.entries.append(("claim", effect))
            return claim(effect)

        def settled(effect: Any, state: Any, *, result: Any = None) -> Any:
            self.entries.append(("settle", (effect, state, result)))
            return settle(effect, state, result=result)

        store._writer.write = write  # type: ignore[method-assign]
        store.claim, store.settle = claimed, settled  # type: ignore[method-assign]

    def hall(self) -> Hall:
        def book(seat: int, at: int) -> None:
            self.entries.append(("book", seat))

        return Hall(book, lambda seat: False)

    def crashed(self, store: Store, at: int, lag: int) -> list[int]:
        """Bring a new store to the state at the crash; return the seats that were booked by then."""
        entries = self.entries[:at]
        units = [place for place, (kind, _) in enumerate(entries) if kind == "rows"]
        missing = set(units[len(units) - lag :] if lag else ())
        for place, (kind, what) in enumerate(entries):
            if kind == "rows" and place not in missing:
                store.write(*what)
            elif kind == "claim":
                store.claim(what)
            elif kind == "settle":
                store.settle(what[0], what[1], result=what[2])
        store.flush(20)
        return [what for kind, what in entries if kind == "book"]


@pytest.mark.slow
@pytest.mark.parametrize("dear", [False, True])
@pytest.mark.parametrize("lag", [0, 1, 4])
def test_crash_after_any_durable_write_is_resumed(tmp_path: Path, dear: bool, lag: int) -> None:
    with Store.open(tmp_path / "whole.db") as store:
        tape = Tape(store)
        run = guarded(store, tape.hall(), dear=dear)
        drive(run, agent)
        store.flush(10)
    assert len(tape.entries) > 60
    for at in range(1 + lag, len(tape.entries), 11):
        with Store.open(tmp_path / f"{at}.db") as store:
            _go_on(store, tape.crashed(store, at, lag), dear=dear)


def _go_on(store: Store, booked: list[int], *, dear: bool) -> None:
    hall = Hall(lambda seat, at: booked.append(seat), lambda seat: seat in booked)
    run = guarded(store, hall, dear=dear)
    ended = run.done
    drive(run, agent)
    store.flush(10)
    _check(store, run, hall if not ended else None, booked)


def _check(store: Store, run: Any, hall: Hall | None, booked: list[int]) -> None:
    assert run.answer == f"{SEATS} seats are booked."
    assert sorted(booked) == list(range(1, SEATS + 1))
    live = run.trajectory
    assert store.get_trajectory("r") == live
    walked = [c.arguments["to"] for step in live.steps for c in step.tool_calls if c.name == "walk"]
    assert hall is None or hall.state == {"at": SEATS, "path": walked}
    back = [one for one in run.recoveries if one.plan.undone]
    assert 1 <= len(back) <= ROLLBACKS, "the budget is one for all lives"
    assert run.session.account.usage.rollbacks == len(back)
    assert sum(branch.reason != INTERRUPTION_REASON for branch in live.branches) == len(back)
    assert all(step.observations for step in live.steps if step.tool_calls)
