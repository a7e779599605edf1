"""A guard writes the bundles of its ended runs from each integration."""

from __future__ import annotations

import asyncio
import inspect
import logging

import pytest

from agentguard import Guard
from agentguard.bundles import BundleFolder, read_bundle, replay_bundle
from examples import bundle_frameworks


class LiveBinding:
    """Binding of an agent that knows no bundles: it records nothing."""

    run_id = "run-1"

    def bind_tools(self, functions):
        return list(functions)

    def bind_transport(self, inner):
        return inner

    def bind_async_transport(self, inner):
        return inner

    def add_session(self, session):
        """Ignore the session."""


@pytest.mark.parametrize("name", bundle_frameworks.AGENTS)
def test_guard_writes_a_bundle_of_each_integration(tmp_path, name):
    folder = BundleFolder(tmp_path / "bundles")
    agent = bundle_frameworks.AGENTS[name]
    with bundle_frameworks.guard.override(run_observers=(folder,)):
        result = agent(LiveBinding())
        if inspect.iscoroutine(result):
            asyncio.run(result)
    assert folder.flush(30)
    (file,) = (tmp_path / "bundles").iterdir()
    replayed = replay_bundle(read_bundle(file), agent, mode="scripted")
    assert replayed.unused_calls == 0
    assert [step.content for step in replayed.trajectory.steps][-1] == "Seat 4 is booked."


def play(guard, answer):
    with guard.run("Find a seat.") as run:
        while not run.done:
            run.tools(run.model(lambda messages: answer))


@pytest.mark.parametrize(("answer", "expected"), [("I could not find a seat.", 1), ("Seat 4 is free.", 0)])
def test_folder_on_failure_writes_failed_runs_only(tmp_path, answer, expected):
    folder = BundleFolder(tmp_path / "bundles", on_failure=True)
    play(Guard(run_observers=[folder]), answer)
    assert folder.flush(30)
    assert len(list(tmp_path.glob("bundles/*.agb"))) == expected


def test_folder_that_cannot_be_written_is_logged(tmp_path, caplog):
    (tmp_path / "bundles").write_text("a file")
    folder = BundleFolder(tmp_path / "bundles")
    with caplog.at_level(logging.WARNING, "agentguard.bundles"):
        play(Guard(run_observers=[folder]), "Done.")
        assert folder.flush(30)
    assert "was not written" in caplog.text
