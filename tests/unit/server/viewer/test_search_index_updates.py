"""Background updates of the search index."""

import threading
from pathlib import Path

import pytest
from agentguard_server.viewer.data import search_index_updates
from agentguard_server.viewer.data.search_index_updates import SearchIndexUpdates

from agentguard.errors import StoreError, StoreUnavailable
from agentguard.store import Store
from agentguard.trajectory.model import Source, Step, Trajectory

TIMEOUT_S = 30.0


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(search_index_updates, "_MIN_AGE_S", 0.0)
    monkeypatch.setattr(search_index_updates, "_IDLE_S", 0.001)
    with Store.open(tmp_path / "s.db") as opened:
        for number in range(45):
            step = Step(index=0, source=Source.AGENT, agent="a", content=f"{number} needles")
            opened.write_run(Trajectory(id=f"r{number}", format="f", task="t", steps=(step,)))
        opened.flush(10)
        yield opened


def test_updates_add_all_runs_and_continue_after_outages(store: Store, monkeypatch: pytest.MonkeyPatch):
    update, outages = store.update_search_index, [StoreUnavailable("down"), StoreUnavailable("down")]
    is_up_to_date = threading.Event()

    def update_with_outages(**options: object) -> int:
        if outages:
            raise outages.pop()
        number = update(**options)
        if not number:
            is_up_to_date.set()
        return number

    monkeypatch.setattr(store, "update_search_index", update_with_outages)
    updates = SearchIndexUpdates(store, tenant="", is_busy=lambda: False)
    updates.start()
    assert is_up_to_date.wait(TIMEOUT_S)
    updates.stop()
    result = store.search_steps("44 needles")
    assert (result.unindexed_runs, result.searched_runs, len(result.runs)) == (0, 1, 1)


def test_updates_wait_while_runs_are_loaded(store: Store):
    was_asked = threading.Semaphore(0)

    def is_busy() -> bool:
        was_asked.release()
        return True

    updates = SearchIndexUpdates(store, tenant="", is_busy=is_busy)
    updates.start()
    for _ in range(3):
        assert was_asked.acquire(timeout=TIMEOUT_S)
    updates.stop()
    assert store.search_steps("needle").unindexed_runs == 45


def test_updates_end_if_the_library_has_no_index(store: Store, monkeypatch: pytest.MonkeyPatch):
    has_failed = threading.Event()

    def fail(**_: object) -> int:
        has_failed.set()
        raise StoreError("no FTS5")

    monkeypatch.setattr(store, "update_search_index", fail)
    updates = SearchIndexUpdates(store, tenant="", is_busy=lambda: False)
    updates.start()
    assert has_failed.wait(TIMEOUT_S)
    assert updates._thread is not None
    updates._thread.join(TIMEOUT_S)
    assert not updates._thread.is_alive()
    updates.stop()
