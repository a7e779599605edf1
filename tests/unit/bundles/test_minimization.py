"""A minimized bundle has the verdict of the recorded run, and no model answer too many."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st
from typer.testing import CliRunner

from agentguard import Guard
from agentguard.bundles import minimize_bundle, read_bundle, record_run, replay_bundle
from agentguard.bundles.minimization import reduce_items
from agentguard.cli.app import build_app
from agentguard.errors import ConfigError

guard = Guard()
PLACES = ["door", "window", "desk", "stairs"]


def find(where: str) -> str:
    """Find a seat."""
    return f"no seat near the {where}"


def run_agent(binding):
    def call_llm(messages, tools):
        done = sum(one["role"] == "tool" for one in messages)
        if done == len(PLACES):
            return "I could not find a seat."
        function = {"name": "find", "arguments": json.dumps({"where": PLACES[done]})}
        return {
            "role": "assistant",
            "tool_calls": [{"id": str(done), "type": "function", "function": function}],
        }

    model, tools = binding.bind_model(call_llm), binding.bind_tools([find])
    with guard.run("Find a seat.", tools=tools, id=binding.run_id) as run:
        while not run.done:
            run.tools(run.model(model))
    return run.trajectory


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    file = tmp_path_factory.mktemp("bundles") / "a.agb"
    record_run(run_agent, file, guard=guard)
    return file


def test_minimized_bundle_has_one_answer_and_replays_equal(file, tmp_path):
    out = tmp_path / "b.agb"
    options = ["bundle", "minimize", str(file), "--agent", f"{__name__}:run_agent", "--output", str(out)]
    result = CliRunner().invoke(build_app(), options)
    assert (result.exit_code, "5 -> 1 model calls, 6 -> 2 steps" in result.output) == (0, True), result.output
    bundle = read_bundle(out)
    assert bundle.expectations == read_bundle(file).expectations == {"verdict": "failed"}
    assert replay_bundle(bundle, run_agent).is_equal


@pytest.mark.parametrize("expectations", [{}, {"verdict": "no_failure_found"}])
def test_minimize_bundle_without_its_verdict_is_refused(file, expectations):
    with pytest.raises(ConfigError, match="verdict"):
        minimize_bundle(replace(read_bundle(file), expectations=expectations), run_agent)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.sets(st.integers(0, 9), max_size=3))
def test_reduce_items_result_is_minimal(items, required):
    def holds(candidate):
        return required & set(items) <= set(candidate)

    kept = reduce_items(items, holds)
    assert holds(kept)
    assert len(kept) == max(1, len(required & set(items)))
