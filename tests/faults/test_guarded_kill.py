"""kill -9 at any point of a guarded run: no effect happens twice, no acknowledged row is lost.

After each kill, the state of the tools and the recovery budgets are the same as before.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import sqlite3
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from agentguard.runtime.resumption import INTERRUPTION_REASON
from agentguard.store import Store
from agentguard.trajectory.model import Trajectory
from tests.faults.guarded_child import ROLLBACKS, SEATS, work
from tests.support.sampling import sample_cases

POINTS = 300
"""Approximate number of points in an undisturbed run of the child."""


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.guarded_child"])
    return context


@pytest.mark.slow
@pytest.mark.parametrize("seed", sample_cases(range(50), 5))
def test_killed_agent_books_every_seat_once(processes: ForkServerContext, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    url, world, said = tmp_path / "s.db", tmp_path / "world.db", tmp_path / "said"
    with sqlite3.connect(world) as database:
        database.execute("create table booked (seat integer, at integer)")
    database.close()
    for life in range(6):
        at = rng.randint(1, POINTS) if life < 3 else 0
        child = processes.Process(target=work, args=(str(url), str(world), str(said), at, seed % 2 == 1))
        child.start()
        child.join(60)
        assert not child.is_alive(), "the child hangs"
        assert child.exitcode in (0, -9)
        if child.exitcode == 0:
            break
    _check(url, world, said)


def _check(url: Path, world: Path, said: Path) -> None:
    database = sqlite3.connect(world)
    booked = list(database.execute("select seat, at from booked order by seat"))
    database.close()
    assert [seat for seat, _ in booked] == list(range(1, SEATS + 1)), "a seat was booked twice, or never"
    assert all(seat == at for seat, at in booked), "a seat was booked from where the agent was not"
    lines = said.read_text().splitlines()
    assert lines[-1] == f"end {SEATS} seats are booked."
    state, spent = json.loads(lines[-3].removeprefix("state ")), int(lines[-2].removeprefix("spent "))
    with Store.open(url) as store:
        run = store.get_trajectory("r")
        assert run is not None
        assert [step.index for step in run.steps] == list(range(len(run.steps)))
        assert len(run.steps) + sum(len(branch.steps) for branch in run.branches) >= max(
            int(line) for line in lines if line.isdigit()
        )
        assert set(_list_final_states(store)) <= {"done", "reconciled", "attempted"}
        walked = [
            call.arguments["to"] for step in run.steps for call in step.tool_calls if call.name == "walk"
        ]
        assert state == {"at": SEATS, "path": walked}, "the state is not that of the live line"
        assert store.list_snapshots("r") == ()
        _check_budget(store, run, spent)


def _list_final_states(store: Store) -> list[str]:
    """Return the state of the last attempt of each call.

    An attempt that a crash cut off before the booking is settled as failed, and the call runs again.
    """
    final: dict[tuple[str, str, str, int], tuple[int, str]] = {}
    for row in store.list_effects("r"):
        occurrence, generation = (int(part) for part in row.logical_step.split("."))
        call = (row.line, row.tool, row.arguments, occurrence)
        final[call] = max(final.get(call, (-1, "")), (generation, row.state))
    return [state for _, state in final.values()]


def _check_budget(store: Store, run: Trajectory, spent: int) -> None:
    """Check that all processes share one budget of rollbacks, and that each stored rollback was executed."""
    back = [row for row in store.list_recoveries("r") if row.data["plan"]["undone"]]
    assert 1 <= spent == len(back) <= ROLLBACKS
    assert [row.data["id"] for row in back] == list(range(spent))
    assert sum(branch.reason != INTERRUPTION_REASON for branch in run.branches) == len(back)
