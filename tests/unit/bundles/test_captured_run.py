"""Runs that another component recorded become bundles for scripted replays."""

from __future__ import annotations

import httpx2
import pytest
from typer.testing import CliRunner

from agentguard import Guard
from agentguard.bundles import read_bundle, replay_bundle
from agentguard.cli.app import build_app
from agentguard.errors import ConfigError, ReplayMismatch
from agentguard.store import Store
from examples import bundle_frameworks, bundle_replay

guard = Guard()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a store with one run, and the run as a file."""
    folder = tmp_path_factory.mktemp("runs")
    with Store.open(folder / "runs.db") as store, Guard(store=store) as guarded:
        with guarded.run("Book seat 4.", tools=[bundle_replay.book], id="trip/1") as run:
            while not run.done:
                run.tools(run.model(bundle_replay.call_llm))
        store.flush(10)
    options = ["convert", "trip/1", "--store", str(folder / "runs.db"), "-o", str(folder / "run.jsonl")]
    assert CliRunner().invoke(build_app(), options).exit_code == 0
    return folder


def export(folder, *arguments):
    return CliRunner().invoke(build_app(), ["bundle", "export", *arguments, "--output", str(folder)])


@pytest.mark.parametrize("source", ["store", "file"])
def test_exported_run_replays_in_scripted_mode(folder, tmp_path, source):
    of_store = ("trip/1", "--store", str(folder / "runs.db"))
    result = export(tmp_path, *(of_store if source == "store" else (str(folder / "run.jsonl"),)))
    assert result.exit_code == 0, result.output
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("trip_1-")
    bundle = read_bundle(file)
    replayed = replay_bundle(bundle, bundle_replay.book_seat, mode="scripted")
    assert (replayed.divergence, replayed.unused_calls, replayed.is_equal) == (None, 0, True)
    with pytest.raises(ConfigError, match=r"no requests of the model.* use the mode scripted"):
        replay_bundle(bundle, bundle_replay.book_seat)
    with pytest.raises(ConfigError, match=r"not declared as read: book \(no class\)"):
        replay_bundle(bundle, bundle_replay.book_seat, mode="decisions")


def test_exported_run_with_reads_replays_with_live_tools(folder, tmp_path):
    assert export(tmp_path, str(folder / "run.jsonl"), "--effect", "book=read").exit_code == 0
    (file,) = tmp_path.iterdir()
    result = replay_bundle(read_bundle(file), bundle_replay.book_seat, mode="decisions")
    assert result.is_equal


@pytest.mark.parametrize("effect", ["book", "book=any", "=read"])
def test_export_wrong_effect_exits_with_2(folder, tmp_path, effect):
    assert export(tmp_path / "out", str(folder / "run.jsonl"), "--effect", effect).exit_code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", bundle_frameworks.AGENTS)
def test_exported_run_replays_with_a_client_of_the_chat_api(folder, tmp_path, name):
    assert export(tmp_path, str(folder / "run.jsonl")).exit_code == 0
    (file,) = tmp_path.iterdir()
    result = replay_bundle(read_bundle(file), bundle_frameworks.AGENTS[name], mode="scripted")
    assert result.unused_calls == 0
    assert result.trajectory.steps[-1].content == "Seat 4 is booked."


def test_exported_run_streams_to_a_client_of_the_chat_api(folder, tmp_path):
    def agent(binding):
        client = httpx2.Client(transport=binding.bind_transport())
        body = {"model": "m", "messages": [], "stream": True}
        response = client.post("https://model.example/v1/chat/completions", json=body)
        assert response.text.endswith("data: [DONE]\n\n")
        with guard.run("t", id=binding.run_id) as run:
            return run.trajectory

    export(tmp_path, str(folder / "run.jsonl"))
    (file,) = tmp_path.iterdir()
    assert replay_bundle(read_bundle(file), agent, mode="scripted").unused_calls == 2


def test_exported_run_with_a_client_of_another_api_is_refused(folder, tmp_path):
    def agent(binding):
        client = httpx2.Client(transport=binding.bind_transport())
        client.post("https://model.example/v1/messages", json={})

    export(tmp_path, str(folder / "run.jsonl"))
    (file,) = tmp_path.iterdir()
    with pytest.raises(ReplayMismatch, match="POST /messages: the bundle has messages of the chat API"):
        replay_bundle(read_bundle(file), agent, mode="scripted")


def test_export_of_an_absent_run_exits_with_2(folder, tmp_path):
    assert export(tmp_path, "absent", "--store", str(folder / "runs.db")).exit_code == 2
    assert export(tmp_path, str(folder / "absent.jsonl")).exit_code == 2
    assert not list(tmp_path.iterdir())
