"""A generated test fails as the recorded run failed, and passes when the agent is fixed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentguard.bundles import record_run
from agentguard.cli.app import build_app

ROOT = Path(__file__).parents[3]
AGENT = '''
from agentguard import Guard

guard = Guard()


def find(where: str) -> str:
    """Find a seat."""
    return "seat 4 is free"


def call_llm(messages, tools):
    if messages[-1]["content"] == "Are you sure?":
        return "I could not find a seat."
    if messages[-1]["role"] == "tool":
        return "Seat 4 is free."
    function = {"name": "find", "arguments": '{"where": "door"}'}
    return {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}


def run(binding):
    model, tools = binding.bind_model(call_llm), binding.bind_tools([find])

    def ask_twice(messages, tools):
        answer = model(messages, tools)
        if isinstance(answer, dict) and answer.get("tool_calls"):
            return answer
        return model([*messages, {"role": "user", "content": "Are you sure?"}], tools)

    with guard.run("Find a free seat.", tools=tools, id=binding.run_id) as run:
        while not run.done:
            run.tools(run.model(ask_twice))
    return run.trajectory
'''
FIXED = AGENT.replace("run.model(ask_twice)", "run.model(model)")


@pytest.fixture
def folder(tmp_path):
    """Return a folder with the agent and the bundle of its failed run."""
    (tmp_path / "seat_agent.py").write_text(AGENT)
    spec = importlib.util.spec_from_file_location("seat_agent", tmp_path / "seat_agent.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "bundles").mkdir()
    record_run(module.run, tmp_path / "bundles" / "lost seat.agb", guard=module.guard)
    return tmp_path


def write_test(folder, agent="seat_agent:run"):
    bundle, out = folder / "bundles" / "lost seat.agb", folder / "test_lost_seat.py"
    return CliRunner().invoke(
        build_app(), ["bundle", "to-test", str(bundle), "--agent", agent, "--output", str(out)]
    )


def run_pytest(folder):
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{ROOT}:{folder}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_lost_seat.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_generated_test_fails_before_and_passes_after_the_fix(folder):
    assert write_test(folder).exit_code == 0
    before = run_pytest(folder)
    assert (before.returncode, "likely cause: step" in before.stdout) == (1, True), before.stdout
    (folder / "seat_agent.py").write_text(FIXED)
    after = run_pytest(folder)
    assert after.returncode == 0, after.stdout


@pytest.mark.parametrize("agent", ["seat_agent", "seat_agent:run()", "os;import x:run"])
def test_write_test_agent_that_is_not_a_name_is_refused(folder, agent):
    result = write_test(folder, agent)
    assert (result.exit_code, "is not MODULE:FUNCTION" in result.output) == (2, True)


def test_write_test_run_without_failure_is_refused(folder):
    from agentguard.bundles import read_bundle, write_bundle

    path = folder / "bundles" / "lost seat.agb"
    bundle = read_bundle(path)
    bundle.expectations["verdict"] = "undecided"
    write_bundle(bundle, path)
    result = write_test(folder)
    assert (result.exit_code, "a test needs a failed run" in result.output) == (2, True)
