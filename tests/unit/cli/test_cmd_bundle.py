"""``agentguard bundle`` and ``agentguard replay``: output and exit status."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from agentguard.bundles import record_run, write_bundle
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
    assert (result.exit_code, result.output) == (1, "step 2 differs in content\n")
    assert invoke("bundle", "diff", files[0], files[0]).exit_code == 0


def test_replay_status_depends_on_equality(files):
    assert invoke("replay", files[0], *AGENT, "--expect").exit_code == 0
    result = invoke("replay", *files, *AGENT)
    assert (result.exit_code, "b.agb: step 2 differs in content" in result.output) == (1, True)


def test_replay_unknown_agent_exits_with_2(files):
    assert invoke("replay", files[0], "--agent", "examples.absent:run").exit_code == 2


def test_replay_other_verdict_is_reported_with_expect(files, tmp_path):
    from agentguard.bundles import read_bundle

    bundle = replace(read_bundle(files[0]), expectations={"verdict": "failure"})
    write_bundle(bundle, tmp_path / "d.agb")
    assert invoke("replay", str(tmp_path / "d.agb"), *AGENT).exit_code == 0
    result = invoke("replay", str(tmp_path / "d.agb"), *AGENT, "--expect")
    assert (result.exit_code, "expected failure" in result.output) == (1, True)
