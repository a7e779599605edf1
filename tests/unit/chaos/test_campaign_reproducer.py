"""Minimal reproducers of unsafe and failed runs of a campaign."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentguard.bundles import RunBinding, read_bundle, replay_bundle
from agentguard.bundles.bindings import RecordableAgent
from agentguard.chaos import (
    CampaignReproducer,
    CampaignRunner,
    ExperimentRunner,
    select_runs,
    shrink_runs,
)
from agentguard.chaos.injection import FaultPlacement
from agentguard.cli.app import build_app
from agentguard.trajectory.model import Trajectory
from examples.chaos_agent import book_trip
from tests.unit.chaos.test_campaign import book_carelessly, build_campaign


def shrink(
    tmp_path: Path,
    agent: RecordableAgent,
    tool: tuple[str, ...] = (),
    model: tuple[str, ...] = (),
    calls: int = 4,
) -> list[CampaignReproducer]:
    """Run a campaign with outages from the first call on, and reduce its runs."""
    campaign = build_campaign(
        faults={"tool": tool, "model": model, "consecutive_calls": calls},
        schedule={"max_calls_per_site": 1},
    )
    results = CampaignRunner(campaign, agent=agent).run().results
    runner = ExperimentRunner(campaign, agent=agent)
    return list(shrink_runs(runner, select_runs(results), tmp_path))


def test_shrink_of_an_outage_leaves_the_call_that_makes_the_run_unsafe(tmp_path: Path) -> None:
    (one,) = shrink(tmp_path, book_carelessly, tool=("after_commit_crash",))
    assert (one.result.outcome, one.problem) == ("unsafe", "")
    assert len(one.calls) == 1
    assert one.file is not None
    assert replay_bundle(read_bundle(one.file), book_carelessly).is_equal


def test_shrink_of_an_outage_that_retries_survive_leaves_only_needed_calls(tmp_path: Path) -> None:
    shrunken = shrink(tmp_path, book_trip, tool=("timeout",), calls=9)
    one = next(reproducer for reproducer in shrunken if reproducer.result.site == "tool:book")
    assert (one.result.outcome, one.problem) == ("failed", "")
    assert 1 < len(one.calls) < 9
    runner = ExperimentRunner(build_campaign())
    for call in one.calls:
        rest = tuple(other for other in one.calls if other != call)
        placement = FaultPlacement(site="tool:book", fault="timeout", calls=rest)
        assert runner.run(placement).outcome != "failed"


def test_bundle_of_a_run_that_ends_with_an_exception_replays_the_exception(tmp_path: Path) -> None:
    (one,) = shrink(tmp_path, book_trip, model=("http_429",), calls=1)
    assert (one.problem, one.file is None) == ("", False)
    assert one.file is not None
    bundle = read_bundle(one.file)
    assert bundle.expectations["error"] == "ModelStatusError"
    assert replay_bundle(bundle, book_trip).is_equal
    other = replace(bundle, expectations={**bundle.expectations, "error": "KeyError"})
    with pytest.raises(Exception, match="HTTP 429"):
        replay_bundle(other, book_trip)


def test_run_without_a_session_has_no_bundle_and_a_problem(tmp_path: Path) -> None:
    def run_without_session(binding: RunBinding) -> Trajectory:
        unbound = _Unbound(binding)
        return book_trip(unbound)

    (one,) = shrink(tmp_path, run_without_session, model=("http_429",), calls=1)
    assert (one.file, one.calls) == (None, (0,))
    assert "without a session" in one.problem


class _Unbound:
    """Binding that does not get the session."""

    def __init__(self, binding: RunBinding) -> None:
        self._binding, self.run_id = binding, binding.run_id

    def add_session(self, session: object) -> None:
        del session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._binding, name)


def test_run_whose_repeat_has_another_outcome_is_reported(tmp_path: Path) -> None:
    campaign = build_campaign(faults={"tool": ["after_commit_crash"], "model": []})
    results = CampaignRunner(campaign, agent=book_carelessly).run().results
    (one,) = shrink_runs(ExperimentRunner(campaign, agent=book_trip), select_runs(results), tmp_path)
    assert (one.file, one.calls) == (None, ())
    assert one.problem == "the outcome of a repeated run differs"


@pytest.fixture
def campaign_file(tmp_path: Path) -> Path:
    file = tmp_path / "campaign.yaml"
    target = "{agent: tests.unit.chaos.test_campaign:book_carelessly, effects: [book]}"
    file.write_text(f"version: 1\ntarget: {target}\nfaults: {{tool: [after_commit_crash], model: []}}\n")
    return file


class TestCommand:
    def test_shrink_prints_each_bundle(self, campaign_file: Path, tmp_path: Path) -> None:
        app, runner, output = build_app(), CliRunner(), str(tmp_path / "chaos")
        assert runner.invoke(app, ["chaos", "run", str(campaign_file), "--output", output]).exit_code == 1
        options = ["chaos", "shrink", str(campaign_file), "--output", output]
        done = runner.invoke(app, [*options, "--json"])
        assert done.exit_code == 0, done.output
        data = json.loads(done.stdout)
        assert (data["run"], data["calls"]) == ("tool:book/after_commit_crash/0/0", [0])
        assert read_bundle(data["file"]).tool_calls[0].error_type == "TimeoutError"
        assert "calls 0; the replay is equal" in runner.invoke(app, options).output

    def test_shrink_with_the_journal_of_another_campaign_is_refused(
        self, campaign_file: Path, tmp_path: Path
    ) -> None:
        app, runner, output = build_app(), CliRunner(), str(tmp_path / "chaos")
        runner.invoke(app, ["chaos", "run", "examples/chaos_campaign.yaml", "--output", output])
        done = runner.invoke(app, ["chaos", "shrink", str(campaign_file), "--output", output])
        assert (done.exit_code, "journal of another campaign" in done.output) == (2, True), done.output

    def test_shrink_of_a_program_is_refused(self, tmp_path: Path) -> None:
        options = ["chaos", "shrink", "examples/chaos_program.yaml", "--output", str(tmp_path)]
        done = CliRunner().invoke(build_app(), options)
        assert (done.exit_code, "target.command: shrink needs" in done.output) == (2, True), done.output

    def test_shrink_of_a_safe_campaign_writes_no_bundle(self, tmp_path: Path) -> None:
        file, output = tmp_path / "campaign.yaml", tmp_path / "chaos"
        target = "{agent: examples.chaos_agent:book_trip, effects: [book]}"
        file.write_text(f"version: 1\ntarget: {target}\nfaults: {{tool: [error], model: []}}\n")
        app, runner = build_app(), CliRunner()
        runner.invoke(app, ["chaos", "run", str(file), "--output", str(output)])
        done = runner.invoke(app, ["chaos", "shrink", str(file), "--output", str(output)])
        assert (done.exit_code, done.output) == (0, "the campaign has no unsafe and no failed run\n")
        assert not list(output.glob("*.agb"))
