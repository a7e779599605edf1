"""``agentguard bundle`` and ``agentguard replay``: output and exit status."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from functools import partial
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from agentguard import Guard
from agentguard.bundles import build_run_bundle, read_bundle, record_run, write_bundle
from agentguard.cli.app import build_app
from examples import bundle_replay

AGENT = ("--agent", "examples.bundle_replay:book_seat")


@pytest.fixture
def files(tmp_path):
    """Return the file of a bundle, and that of one with another last step."""
    bundle = record_run(bundle_replay.book_seat, tmp_path / "a.agb", guard=bundle_replay.guard)
    run = bundle.trajectory
    steps = (*run.steps[:-1], replace(run.steps[-1], content="No seat is free."))
    write_bundle(replace(bundle, trajectory=replace(run, steps=steps)), tmp_path / "b.agb")
    return str(tmp_path / "a.agb"), str(tmp_path / "b.agb")


def invoke(*arguments):
    return CliRunner().invoke(build_app(), list(arguments))


def test_inspect_json_has_calls_and_verdict(files):
    summary = json.loads(invoke("bundle", "inspect", files[0], "--json").output)
    assert (summary["steps"], summary["model calls"], summary["tool calls"]) == (3, 2, 1)
    assert summary["expectations"]["verdict"] == summary["verdict"]


def test_verify_valid_and_invalid_bundles_differ_in_status(files, tmp_path):
    assert invoke("bundle", "verify", *files).exit_code == 0
    (tmp_path / "c.agb").write_bytes(b"PK")
    result = invoke("bundle", "verify", str(tmp_path / "c.agb"))
    assert (result.exit_code, "c.agb" in result.output) == (2, True)


def test_diff_names_the_first_different_step(files):
    result = invoke("bundle", "diff", *files)
    assert (result.exit_code, "first different step in content" in result.output) == (1, True)
    assert result.output.splitlines()[-1] == "all tool calls are equal"
    assert invoke("bundle", "diff", files[0], files[0]).exit_code == 0


def find_seat(binding, place):
    """Look for a seat at a place, as a model with random call IDs and its own clock does."""

    def find(where: str) -> str:
        """Find a free seat."""
        return "seat 4 is free" if where == "window" else "no seat is free"

    def call_llm(messages, tools):
        if messages[-1]["role"] == "tool":
            found = "no" not in messages[-1]["content"]
            return "Seat 4 is free." if found else "I could not find a seat."
        function = {"name": "find", "arguments": json.dumps({"where": place})}
        return {
            "role": "assistant",
            "tool_calls": [{"id": uuid.uuid4().hex, "type": "function", "function": function}],
        }

    model, tools = binding.bind_model(call_llm), binding.bind_tools([find])
    with Guard().run("Find a free seat.", tools=tools, id=binding.run_id) as run:
        while not run.done:
            run.tools(run.model(model))
    return run.trajectory


def test_diff_of_failed_and_passed_run_names_the_argument_that_decides(tmp_path):
    paths = []
    for place in ("door", "window", "window"):
        paths.append(str(tmp_path / f"{len(paths)}-{place}.agb"))
        record_run(partial(find_seat, place=place), paths[-1], guard=Guard())
    assert invoke("bundle", "diff", *paths[1:]).exit_code == 0
    result = invoke("bundle", "diff", *paths[:2])
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[lines.index("first different tool call in arguments.where") + 1 :] == [
        f"  {paths[0]}: step 1: door",
        f"  {paths[1]}: step 1: window",
    ]
    difference = json.loads(invoke("bundle", "diff", *paths[:2], "--json").output)
    assert difference["step"]["field"] == "tool_calls.0.arguments.where"
    assert difference["call"]["values"] == ["door", "window"]


def test_diff_of_a_shorter_run_shows_the_step_of_the_other_one(files, tmp_path):
    bundle = read_bundle(files[0])
    run = replace(bundle.trajectory, steps=bundle.trajectory.steps[:2])
    write_bundle(replace(bundle, trajectory=run), tmp_path / "short.agb")
    result = invoke("bundle", "diff", str(tmp_path / "short.agb"), files[0])
    assert (result.exit_code, "short.agb: none" in result.output) == (1, True)


def test_replay_status_depends_on_equality(files):
    assert invoke("replay", files[0], *AGENT, "--expect").exit_code == 0
    result = invoke("replay", *files, *AGENT)
    assert (result.exit_code, "b.agb: step 2 differs in content" in result.output) == (1, True)


def test_replay_agent_that_raises_is_reported_with_the_file(files, tmp_path, monkeypatch):
    (tmp_path / "broken_agent.py").write_text("def run(binding):\n    raise LookupError('no seat map')\n")
    monkeypatch.syspath_prepend(tmp_path)
    result = invoke("replay", files[0], "--agent", "broken_agent:run")
    assert result.exit_code == 1
    assert f"{files[0]}: the agent raised LookupError: no seat map" in result.output


def test_replay_bundle_without_requests_names_file_and_mode(files, tmp_path):
    bundle = read_bundle(files[0])
    write_bundle(build_run_bundle(bundle.trajectory, None), tmp_path / "c.agb")
    result = invoke("replay", str(tmp_path / "c.agb"), *AGENT)
    assert result.exit_code == 2
    assert "c.agb: replay: the bundle has no requests of the model" in result.output.replace("\n", " ")
    assert invoke("replay", str(tmp_path / "c.agb"), *AGENT, "--mode", "scripted").exit_code == 0


def test_replay_unknown_agent_exits_with_2(files):
    assert invoke("replay", files[0], "--agent", "examples.absent:run").exit_code == 2


def test_replay_other_verdict_is_reported_with_expect(files, tmp_path):
    bundle = replace(read_bundle(files[0]), expectations={"verdict": "failed"})
    write_bundle(bundle, tmp_path / "d.agb")
    assert invoke("replay", str(tmp_path / "d.agb"), *AGENT).exit_code == 0
    result = invoke("replay", str(tmp_path / "d.agb"), *AGENT, "--expect")
    assert (result.exit_code, "expected failed" in result.output) == (1, True)


def test_replay_junit_report_has_one_failure(files, tmp_path):
    report = tmp_path / "report.xml"
    assert invoke("replay", *files, *AGENT, "--junit", str(report)).exit_code == 1
    suite = ElementTree.parse(report).getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert suite[1][0].get("message") == "step 2 differs in content"


def test_replay_edit_prints_the_difference_without_a_failure(files, tmp_path):
    (tmp_path / "answer.txt").write_text("No seat is free.\n")
    options = ("--mode", "from-call", "--from-call", "1", "--edit", str(tmp_path / "answer.txt"))
    result = invoke("replay", files[0], *AGENT, *options)
    assert (result.exit_code, "step 2 differs in content" in result.output) == (0, True)


@pytest.mark.parametrize(
    "options", [("--edit", "absent.json"), ("--junit", "absent/report.xml"), ("--mode", "from-call")]
)
def test_replay_wrong_option_exits_with_2(files, options):
    assert invoke("replay", files[0], *AGENT, *options).exit_code == 2


def test_scrub_removes_a_pattern_from_each_member_and_replay_is_equal(files, tmp_path):
    out = tmp_path / "e.agb"
    result = invoke("bundle", "scrub", files[0], "--output", str(out), "--pattern", "place=seat 4")
    assert result.exit_code == 0
    assert b"seat 4" not in out.read_bytes().replace(b'"place":"seat 4"', b"")
    assert invoke("replay", str(out), *AGENT).exit_code == 0


@pytest.mark.parametrize("pattern", ["seat", "place=", "place=(", "a place=x"])
def test_scrub_wrong_pattern_exits_with_2(files, tmp_path, pattern):
    out = tmp_path / "e.agb"
    assert invoke("bundle", "scrub", files[0], "--output", str(out), "--pattern", pattern).exit_code == 2
    assert not out.exists()
