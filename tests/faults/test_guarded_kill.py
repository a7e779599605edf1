"""kill -9 anywhere in a guarded run with effects: nothing is done twice, nothing acknowledged is lost."""

from __future__ import annotations

import multiprocessing
import random
import sqlite3
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from agentguard.store import Store
from tests.faults.guarded_child import SEATS, work

POINTS = 80
"""Points that an undisturbed life of the child passes, roughly."""


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.guarded_child"])
    return context


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50))
def test_every_seat_is_booked_once(processes: ForkServerContext, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    url, world, said = tmp_path / "s.db", tmp_path / "world.db", tmp_path / "said"
    with sqlite3.connect(world) as database:
        database.execute("create table booked (seat integer)")
    database.close()
    for life in range(6):
        at = rng.randint(1, POINTS) if life < 3 else 0
        child = processes.Process(target=work, args=(str(url), str(world), str(said), at))
        child.start()
        child.join(60)
        assert not child.is_alive(), "the child hangs"
        assert child.exitcode in (0, -9)
        if child.exitcode == 0:
            break
    _check(url, world, said)


def _check(url: Path, world: Path, said: Path) -> None:
    database = sqlite3.connect(world)
    booked = [seat for (seat,) in database.execute("select seat from booked order by seat")]
    database.close()
    assert booked == list(range(1, SEATS + 1)), "a seat was booked twice, or never"
    lines = said.read_text().splitlines()
    assert lines[-1] == f"end {SEATS} seats are booked."
    with Store.open(url) as store:
        run = store.trajectory("r")
        assert run is not None
        assert [step.index for step in run.steps] == list(range(len(run.steps)))
        assert len(run.steps) + sum(len(branch.steps) for branch in run.branches) >= max(
            int(line) for line in lines if line.isdigit()
        )
        assert {effect.state for effect in store.effects("r")} <= {"done", "attempted"}
        assert any(branch.steps for branch in run.branches), "the loop was not taken back"
