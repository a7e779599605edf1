"""A recorded run replays with equal bytes, and every deviation is an error or a divergence."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agentguard import Guard
from agentguard.bundles import find_divergence, read_bundle, record_run, replay_bundle, write_bundle
from agentguard.errors import BundleError, ConfigError, ReplayMismatch
from examples import bundle_replay, guard_loop

ROOT = Path(__file__).parents[3]
SEALED = """
import socket, sys
def refuse(*args, **named): raise AssertionError("a socket was opened")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from agentguard.cli import main
sys.argv = ["agentguard", "replay", sys.argv[1], "--agent", "examples.bundle_replay:book_seat", "--expect"]
main()
"""


@pytest.fixture
def bundle(tmp_path):
    return record_run(bundle_replay.book_seat, tmp_path / "a.agb", guard=bundle_replay.guard)


def run_agent(binding, *, task="Book seat 4.", seat=4, tool=bundle_replay.book):
    def call_llm(messages, tools):
        raise AssertionError("the replay called the live model")

    model, tools = binding.bind_model(call_llm), binding.bind_tools([tool])
    with Guard().run(task, tools=tools, id=binding.run_id) as run:
        while not run.done:
            run.tools(run.model(model))
    return run.trajectory


def test_replay_same_agent_gives_equal_event_log(bundle):
    result = replay_bundle(bundle, bundle_replay.book_seat)
    assert result.is_equal
    assert (result.divergence, result.unused_calls) == (None, 0)
    assert bundle.tool_calls[0].effect == "write"


def test_replay_run_with_rollbacks_gives_equal_event_log(tmp_path):
    def agent(binding):
        model = binding.bind_model(guard_loop.call_llm)
        tools = binding.bind_tools([guard_loop.find, guard_loop.book])
        with guard_loop.guard.run("Book seat 4.", tools=tools, id=binding.run_id) as run:
            while not run.done:
                run.tools(run.model(model))
        return run.trajectory

    recorded = record_run(agent, tmp_path / "a.agb", guard=guard_loop.guard)
    booked = list(guard_loop.BOOKED)
    result = replay_bundle(recorded, agent)
    assert result.is_equal, result.divergence
    assert recorded.trajectory.branches
    assert booked == guard_loop.BOOKED


def test_replay_other_task_names_recording_and_field(bundle):
    with pytest.raises(ReplayMismatch, match=r"model: .* nearest recording 0 in messages\.0\.content"):
        replay_bundle(bundle, lambda binding: run_agent(binding, task="Book seat 5."))


def test_replay_missing_tool_call_raises_after_the_guard_caught_the_error(bundle):
    with pytest.raises(ReplayMismatch, match="book: the bundle has no call of this function"):
        replay_bundle(replace(bundle, tool_calls=()), bundle_replay.book_seat)


def test_replay_does_not_call_live_functions(bundle):
    assert replay_bundle(bundle, run_agent).is_equal


def test_replay_changed_recording_reports_first_divergence(bundle):
    step = replace(bundle.trajectory.steps[-1], content="Seat 5 is booked.")
    changed = replace(
        bundle, trajectory=replace(bundle.trajectory, steps=(*bundle.trajectory.steps[:-1], step))
    )
    result = replay_bundle(changed, bundle_replay.book_seat)
    assert not result.is_equal
    assert (result.divergence.step, result.divergence.field) == (2, "content")


def test_replay_tool_exception_is_raised_again(tmp_path):
    def book(seat: int) -> str:
        """Book a seat."""
        raise TimeoutError("no answer")

    def agent(binding):
        model, tools = binding.bind_model(bundle_replay.call_llm), binding.bind_tools([book])
        with Guard().run("Book seat 4.", tools=tools, id=binding.run_id) as run:
            while not run.done:
                run.tools(run.model(model))
        return run.trajectory

    recorded = record_run(agent, tmp_path / "a.agb", guard=Guard())
    assert "TimeoutError: no answer" in recorded.trajectory.steps[1].observations[0].content
    assert replay_bundle(recorded, agent).is_equal


def test_find_divergence_shorter_run_names_the_missing_step(bundle):
    run = bundle.trajectory
    divergence = find_divergence(run, replace(run, steps=run.steps[:2]))
    assert (divergence.step, divergence.field) == (2, "")
    assert find_divergence(run, run) is None


def test_replay_unknown_mode_is_refused(bundle):
    with pytest.raises(ConfigError, match="mode"):
        replay_bundle(bundle, bundle_replay.book_seat, mode="live")


def test_replay_command_without_keys_and_network_succeeds(bundle, tmp_path):
    write_bundle(bundle, tmp_path / "b.agb")
    assert (tmp_path / "a.agb").read_bytes() == (tmp_path / "b.agb").read_bytes()
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SEALED, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": equal") == 2


def test_record_run_secret_in_result_is_not_in_the_file(tmp_path):
    secret = "sk-" + "a1B2c3D4e5F6g7H8" * 3

    def book(seat: int) -> str:
        """Book a seat."""
        return f"api_key={secret}"

    def agent(binding):
        model, tools = binding.bind_model(bundle_replay.call_llm), binding.bind_tools([book])
        with Guard().run("Book seat 4.", tools=tools, id=binding.run_id) as run:
            while not run.done:
                run.tools(run.model(model))
        return run.trajectory

    recorded = record_run(agent, tmp_path / "a.agb", guard=Guard())
    assert secret.encode() not in (tmp_path / "a.agb").read_bytes()
    assert replay_bundle(read_bundle(tmp_path / "a.agb"), agent).is_equal
    assert "[redacted:" in recorded.tool_calls[0].result


def model(seat: int) -> str:
    """Return the model of a seat; the name is that of no model of an LLM."""
    return f"seat {seat} is a recliner"


def test_replay_tool_named_model_returns_the_recorded_result(tmp_path):
    def agent(binding):
        call_llm = binding.bind_model(lambda messages, tools: {"role": "assistant", "content": "Booked."})
        (look_up,) = binding.bind_tools([model])
        look_up(4)
        with Guard().run("Book seat 4.", tools=[look_up], id=binding.run_id) as run:
            while not run.done:
                run.tools(run.model(call_llm))
        return run.trajectory

    recorded = record_run(agent, tmp_path / "a.agb", guard=Guard())
    result = replay_bundle(recorded, agent)
    assert (result.is_equal, result.unused_calls) == (True, 0)


def test_record_request_with_lone_surrogate_raises_typed_error(tmp_path):
    def agent(binding):
        (look_up,) = binding.bind_tools([model])
        look_up("\ud800")

    with pytest.raises(BundleError, match="cannot be recorded as JSON"):
        record_run(agent, tmp_path / "a.agb", guard=Guard())


def stop_early(binding, *, error=LookupError):
    """Call the model once, then raise an exception."""
    model = binding.bind_model(lambda messages, tools: "I look at the seat map.")
    with Guard().run("Book seat 4.", id=binding.run_id) as run:
        binding.add_session(run.session)
        run.model(model)
        if error is not None:
            raise error("no seat map")


def test_recording_of_an_agent_that_raises_has_the_run_and_the_exception(tmp_path):
    with pytest.raises(LookupError, match="no seat map"):
        record_run(stop_early, tmp_path / "a.agb", guard=Guard())
    bundle = read_bundle(tmp_path / "a.agb")
    assert bundle.expectations["error"] == "LookupError"
    assert replay_bundle(bundle, stop_early).difference == ""


def test_replay_without_the_expected_exception_differs(tmp_path):
    with pytest.raises(LookupError):
        record_run(stop_early, tmp_path / "a.agb", guard=Guard())
    result = replay_bundle(read_bundle(tmp_path / "a.agb"), lambda binding: stop_early(binding, error=None))
    assert result.missing_error == "LookupError"
    assert "without the exception LookupError" in result.difference


def test_replay_with_another_exception_raises_it(tmp_path):
    with pytest.raises(LookupError):
        record_run(stop_early, tmp_path / "a.agb", guard=Guard())
    with pytest.raises(PermissionError):
        replay_bundle(
            read_bundle(tmp_path / "a.agb"), lambda binding: stop_early(binding, error=PermissionError)
        )
