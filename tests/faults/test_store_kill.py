"""kill -9 at fifty seeded moments: all acknowledged rows exist, and no effect happened twice."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from agentguard.store import Store
from agentguard.store.db.rows import EffectRow
from tests.faults import store_child
from tests.postgres import postgres, postgres_url  # noqa: F401
from tests.support.sampling import sample_cases

SEED = 20260101


@pytest.fixture(scope="module")
def children():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tests.faults.store_child", "agentguard.store.store", "sqlalchemy.dialects.sqlite", "psycopg"]
    )
    return context


def live_and_die(children, url: str, folder: Path, rng: random.Random, *, lives: list[int]) -> None:
    """Start a child for each life; kill it some acknowledgements and a moment later."""
    started = []
    for life in lives:
        said = folder / f"said-{life}"
        child = children.Process(target=store_child.work, args=(url, life, str(said), str(folder / "world")))
        child.start()
        started.append((child, said))
    for child, said in started:
        wanted = rng.randint(0, 12)
        until = time.monotonic() + 60
        while wanted and (not said.exists() or said.read_bytes().count(b"\n") < wanted):
            assert child.is_alive(), f"a child ended by itself (seed {SEED})"
            assert time.monotonic() < until, "a child does nothing"
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.02 if wanted else 0.2))
        os.kill(child.pid, signal.SIGKILL)
        child.join()


def check(url: str, folder: Path) -> None:
    acknowledged = [line for said in folder.glob("said-*") for line in said.read_text().split()]
    world = Counter((folder / "world").read_text().split())
    with Store.open(url) as store:
        there = {row.id for row in store.list_findings("r")}
        assert len(acknowledged) > 20  # the run covers the case
        assert set(acknowledged) <= there, f"lost with seed {SEED}"
        assert len(world) > 5
        assert set(world.values()) == {1}, f"an effect happened twice with seed {SEED}"
        for which in world:
            claim = store.claim(EffectRow(run_id="r", tool="book", arguments=which))
            assert claim.state in ("attempted", "done")


@pytest.mark.slow
def test_kills_on_sqlite_lose_no_acknowledged_row(children, tmp_path):
    rng = random.Random(SEED)
    for life in sample_cases(range(50), 25):
        live_and_die(children, str(tmp_path / "store.db"), tmp_path, rng, lives=[life])
    check(str(tmp_path / "store.db"), tmp_path)


@pytest.mark.slow
def test_kills_of_processes_with_shared_database_repeat_no_effect(children, tmp_path):
    """Two processes claim the same effects concurrently."""
    rng = random.Random(SEED)
    for life in range(0, 12, 2):
        live_and_die(children, str(tmp_path / "store.db"), tmp_path, rng, lives=[life, life + 1])
    check(str(tmp_path / "store.db"), tmp_path)


@pytest.mark.slow
def test_kills_on_postgresql_lose_no_acknowledged_row(children, tmp_path, postgres_url):  # noqa: F811
    rng = random.Random(SEED)
    for life in range(0, 10, 2):
        live_and_die(children, postgres_url, tmp_path, rng, lives=[life, life + 1])
    check(postgres_url, tmp_path)
