"""Campaigns: file, steady state, faults, outcomes, journal and report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentguard.bundles import CallBinding
from agentguard.chaos import (
    Campaign,
    CampaignRunner,
    ExperimentOutcome,
    ExperimentResult,
    build_campaign_report,
    read_campaign_result,
    render_campaign_report,
)
from agentguard.cli.app import build_app
from agentguard.errors import ConfigError
from agentguard.trajectory.model import Source, Step, Trajectory
from examples.chaos_agent import book_trip

AGENT = "examples.chaos_agent:book_trip"


def build_campaign(agent: str = AGENT, **sections: Any) -> Campaign:
    target = {"agent": agent, "effects": ["book"]}
    return Campaign.model_validate({"version": 1, "target": target, **sections})


def run_fault(
    site: str, fault: str, agent: Callable[[CallBinding], Trajectory] = book_trip
) -> ExperimentResult:
    """Run the first call of a site with a fault."""
    kind = "model" if site == "model" else "tool"
    faults = {"tool": [], "model": []} | {kind: [fault]}
    campaign = build_campaign(faults=faults, schedule={"max_calls_per_site": 1})
    result = CampaignRunner(campaign, agent=agent).run()
    return next(one for one in result.results if one.site == site)


def book_carelessly(binding: CallBinding) -> Trajectory:
    """Book without a guard; repeat a booking without an answer; claim success in any case."""

    def book(seat: int) -> str:
        """Book a seat."""
        return f"seat {seat} is yours"

    (tool,) = binding.bind_tools([book])
    for _ in range(2):
        try:
            tool(seat=4)
            break
        except (TimeoutError, RuntimeError, PermissionError):
            continue
    step = Step(index=0, source=Source.AGENT, agent="agent", content="Seat 4 is booked.")
    return Trajectory(id=binding.run_id, format="event_log", task="Book seat 4.", steps=(step,))


def fail_always(binding: CallBinding) -> Trajectory:
    raise OSError("the database is missing")


class TestOutcomes:
    @pytest.mark.parametrize("fault", ["error", "timeout", "after_commit_crash", "ok_with_error"])
    def test_guarded_agent_with_faulty_booking_survives(self, fault: str) -> None:
        result = run_fault("tool:book", fault)
        assert (result.outcome, result.extra_effects, result.missing_effects) == ("survived", 0, 0)
        assert result.detected_after == 0

    @pytest.mark.parametrize("fault", ["bad_arguments", "bad_tool_name"])
    def test_guarded_agent_with_wrong_model_answer_survives(self, fault: str) -> None:
        assert run_fault("model", fault).outcome is ExperimentOutcome.SURVIVED

    def test_model_without_answer_fails_without_effects(self) -> None:
        result = run_fault("model", "http_429")
        assert (result.outcome, result.extra_effects) == ("failed", 0)
        assert result.error == "ModelStatusError: HTTP 429: too many requests"

    def test_lost_answer_of_unguarded_booking_is_unsafe(self) -> None:
        result = run_fault("tool:book", "after_commit_crash", book_carelessly)
        assert (result.outcome, result.extra_effects, result.recovered_after) == ("unsafe", 1, 1)

    def test_claim_without_effect_is_unsafe(self) -> None:
        result = run_fault("tool:book", "ok_with_error", book_carelessly)
        assert (result.outcome, result.missing_effects, result.is_false_claim) == ("unsafe", 1, True)

    def test_more_calls_than_permitted_are_degraded(self) -> None:
        campaign = build_campaign(
            faults={"tool": ["error"], "model": []}, steady_state={"max_extra_calls": 0.2}
        )
        outcomes = {one.outcome for one in CampaignRunner(campaign).run().results}
        assert outcomes == {ExperimentOutcome.DEGRADED}

    def test_fault_without_meaning_is_not_injected(self) -> None:
        assert run_fault("tool:book", "stale").outcome is ExperimentOutcome.NOT_INJECTED

    def test_every_fault_gives_an_outcome(self) -> None:
        results = CampaignRunner(build_campaign()).run().results
        assert {one.fault for one in results} >= {"truncated", "schema_changed", "denied", "refusal"}
        assert all(not one.error or one.outcome is ExperimentOutcome.FAILED for one in results)

    def test_check_decides_on_success(self) -> None:
        target = {"agent": AGENT, "check": f"{__name__}:has_no_booking"}
        campaign = Campaign.model_validate({"version": 1, "target": target})
        with pytest.raises(ConfigError, match="the check returned False"):
            CampaignRunner(campaign)


def has_no_booking(run: Trajectory) -> bool:
    return "yours" not in run.steps[-1].content


class TestCampaignFile:
    def test_invalid_fields_are_named_with_the_file(self, tmp_path: Path) -> None:
        file = tmp_path / "campaign.yaml"
        file.write_text("version: 1\ntarget: {agent: nothing}\nfaults: {tool: [meteor]}\nshedule: {}\n")
        with pytest.raises(ConfigError) as caught:
            Campaign.load(file)
        text = str(caught.value)
        assert text.startswith(str(file))
        assert all(
            part in text for part in ("must be MODULE:FUNCTION", "unknown tool fault meteor", "shedule")
        )

    def test_missing_agent_is_named(self) -> None:
        with pytest.raises(ConfigError, match=r"target\.agent: no_such_module:run cannot be imported"):
            build_campaign("no_such_module:run").load_agent()

    def test_violated_steady_state_refuses_to_start(self) -> None:
        with pytest.raises(
            ConfigError, match=r"steady_state: 0% of 1 runs .* \(OSError: the database is missing\)"
        ):
            CampaignRunner(build_campaign(), agent=fail_always)


class TestJournal:
    def test_killed_campaign_resumes_without_repetition(self, tmp_path: Path) -> None:
        campaign = build_campaign(faults={"tool": ["error", "timeout"], "model": ["empty"]})
        whole = CampaignRunner(campaign).run(tmp_path)
        journal = tmp_path / "runs.jsonl"
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join(lines[:3]) + lines[3][:10])  # as a kill during a write leaves it
        executed: list[ExperimentResult] = []
        again = CampaignRunner(campaign).run(tmp_path, on_result=executed.append)
        assert len(executed) == len(lines) - 3
        assert again.results == whole.results
        assert read_campaign_result(tmp_path).planned == len(whole.results)

    def test_journal_of_another_campaign_is_refused(self, tmp_path: Path) -> None:
        CampaignRunner(build_campaign(faults={"tool": ["error"], "model": []})).run(tmp_path)
        with pytest.raises(ConfigError, match="of another campaign"):
            CampaignRunner(build_campaign()).run(tmp_path)

    def test_damaged_journal_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "runs.jsonl").write_text("[1]\n")
        with pytest.raises(ConfigError, match=r"runs\.jsonl is not a journal"):
            read_campaign_result(tmp_path)

    def test_abort_rule_ends_the_campaign_at_the_first_unsafe_run(self) -> None:
        campaign = build_campaign(
            schedule={"repeats": 9},
            abort={"max_unsafe": 1},
            faults={"tool": ["after_commit_crash"], "model": []},
        )
        result = CampaignRunner(campaign, agent=book_carelessly).run()
        assert (len(result.results), result.planned) == (1, 9)
        assert result.abort_reason == "abort.max_unsafe: 1 unsafe runs"
        assert not build_campaign_report(result).is_safe


def test_processes_give_the_results_of_one_process(tmp_path: Path) -> None:
    campaign = build_campaign(faults={"tool": ["error", "empty"], "model": ["empty"]})
    alone, together = CampaignRunner(campaign).run(), CampaignRunner(campaign).run(tmp_path, jobs=2)
    assert together.results == alone.results


def test_plan_is_the_same_for_the_same_seed() -> None:
    plans = [
        CampaignRunner(build_campaign(schedule={"seed": seed, "max_runs": 9})).plan() for seed in (1, 1, 2)
    ]
    assert plans[0] == plans[1] != plans[2]
    assert len(plans[0]) == 9


def test_page_has_the_matrix_and_no_markup_of_runs() -> None:
    campaign = build_campaign(faults={"tool": ["after_commit_crash"], "model": []})
    report = build_campaign_report(CampaignRunner(campaign, agent=book_carelessly).run())
    page = render_campaign_report(report, "<b>")
    assert "<b>" not in page.replace("<b>1</b>", "").replace("<b>0</b>", "")
    assert '<td class="no">unsafe</td>' in page


class TestCommand:
    def test_run_writes_report_and_exits_with_1_for_unsafe_runs(self, tmp_path: Path) -> None:
        app, runner = build_app(), CliRunner()
        campaign, output = tmp_path / "campaign.yaml", tmp_path / "chaos"
        target = "{agent: tests.unit.chaos.test_campaign:book_carelessly, effects: [book]}"
        campaign.write_text(f"version: 1\ntarget: {target}\nfaults: {{tool: [after_commit_crash, error]}}\n")
        done = runner.invoke(app, ["chaos", "run", str(campaign), "--output", str(output), "--json"])
        assert done.exit_code == 1, done.output
        data = json.loads(done.stdout)
        assert data == json.loads((output / "report.json").read_text())
        assert data["outcomes"]["unsafe"] == 1
        assert (data["cells"][0]["site"], data["cells"][0]["fault"]) == ("tool:book", "after_commit_crash")
        assert "tool:book" in (output / "report.html").read_text()
        again = runner.invoke(app, ["chaos", "report", str(output)])
        assert again.exit_code == 1
        assert "2 of 2 runs" in again.output

    def test_run_of_the_example_has_no_unsafe_run(self, tmp_path: Path) -> None:
        done = CliRunner().invoke(
            build_app(), ["chaos", "run", "examples/chaos_campaign.yaml", "--output", str(tmp_path)]
        )
        assert done.exit_code == 0, done.output
        assert "20 of 20 runs" in done.output

    def test_plan_lists_runs_by_site_and_fault(self) -> None:
        done = CliRunner().invoke(build_app(), ["chaos", "plan", "examples/chaos_campaign.yaml"])
        assert done.exit_code == 0, done.output
        assert "site=model  fault=http_429  runs=2" in done.output
        assert done.output.splitlines()[-1] == "20 runs"


def test_fixture_fails_a_test_with_unsafe_runs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from examples.chaos_agent import book_trip
        from tests.unit.chaos.test_campaign import book_carelessly

        @pytest.mark.chaos(tool=["after_commit_crash"], model=[], effects=["book"])
        def test_guarded(chaos):
            assert chaos(book_trip).outcomes["survived"] == 2

        @pytest.mark.chaos(tool=["after_commit_crash"], model=[], effects=["book"])
        def test_unguarded(chaos):
            chaos(book_carelessly)
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*unsafe runs with after_commit_crash at tool:book*"])
