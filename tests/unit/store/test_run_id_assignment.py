"""Ids of imported runs: a different run never replaces a stored one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentguard.store import Store
from agentguard.store.run_id_assignment import RunIdAssigner
from agentguard.trajectory.model import Source, Step, Trajectory


def build_run(*texts: str, task: str = "Book a flight.") -> Trajectory:
    steps = tuple(
        Step(index=i, source=Source.AGENT, agent="assistant", content=text) for i, text in enumerate(texts)
    )
    return Trajectory(id="001", format="openai_chat", task=task, steps=steps)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "s.db") as opened:
        opened.write_run(build_run("Searching.", "Booked.")).wait(10)
        yield opened


def test_new_id_is_retained(store: Store) -> None:
    run = replace(build_run("Hello."), id="002")
    assert RunIdAssigner(store).assign_id(run, "a.json") == run


@pytest.mark.parametrize(
    "texts", [("Searching.", "Booked."), ("Searching.",), ("Searching.", "Booked.", "Bye.")]
)
def test_equal_shorter_or_grown_run_replaces_the_stored_one(store: Store, texts: tuple[str, ...]) -> None:
    versions = RunIdAssigner(store)
    assert versions.assign_id(build_run(*texts), "a.json").id == "001"
    assert versions.conflicts == 0


def test_different_run_with_stored_id_gets_id_of_its_file(store: Store) -> None:
    versions = RunIdAssigner(store)
    run = versions.assign_id(build_run("Paying."), "tuesday/001.json")
    assert (run.id, versions.conflicts) == ("tuesday/001.json:001", 1)


def test_versioned_run_gets_the_same_id_again(store: Store) -> None:
    first = RunIdAssigner(store).assign_id(build_run("Paying."), "tuesday/001.json")
    store.write_run(first).wait(10)
    assert RunIdAssigner(store).assign_id(build_run("Paying."), "tuesday/001.json").id == first.id
    third = RunIdAssigner(store).assign_id(build_run("Asking."), "tuesday/001.json")
    assert third.id == "tuesday/001.json:001#2"


def test_run_of_another_tenant_is_no_conflict(store: Store) -> None:
    versions = RunIdAssigner(store, tenant="team")
    assert versions.assign_id(build_run("Paying."), "a.json").id == "001"


def test_different_run_without_file_gets_a_number(store: Store) -> None:
    assert RunIdAssigner(store).assign_id(build_run("Paying."), None).id == "001#2"


def test_equal_run_is_found_under_the_id_of_its_file(store: Store) -> None:
    versions = RunIdAssigner(store)
    run = build_run("Paying.")
    assert versions.find_equal(run, "tuesday/001.json") is None
    store.write_run(versions.assign_id(run, "tuesday/001.json")).wait(10)
    assert versions.find_equal(run, "tuesday/001.json") == "tuesday/001.json:001"
    assert versions.find_equal(build_run("Searching.", "Booked."), "tuesday/001.json") == "001"


def test_grown_run_is_not_equal(store: Store) -> None:
    assert RunIdAssigner(store).find_equal(build_run("Searching.", "Booked.", "Bye."), "a.json") is None
