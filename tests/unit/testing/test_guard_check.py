"""The guard breaks no scripted run, and rescues, stops or contains the failing ones."""

from __future__ import annotations

import orjson
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.guard import Guard
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.testing.contracts.integrations import ContractRun
from agentguard.testing.guard_check import build_scenarios, run_guard_check
from agentguard.testing.guard_check.check import CheckOutcome, run_plain
from agentguard.testing.guard_check.own_loop import run_own_loop

SCENARIOS = build_scenarios()


def test_scenarios_are_unique_and_cover_both_corpora() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
    passing = sum(run_plain(scenario).passes for scenario in SCENARIOS)
    assert passing >= 300
    assert len(SCENARIOS) - passing >= 300


def test_default_guard_of_own_loop_breaks_no_run() -> None:
    report = run_guard_check(run_own_loop, SCENARIOS, lambda: Guard(localizer="first_finding"))
    assert [one.scenario.name for one in report.list_broken()] == []
    assert report.compute_call_growth() <= 0.05
    assert sum(one.guarded.harm for one in report.comparisons) == 0
    outcomes = report.count_outcomes()
    assert outcomes[CheckOutcome.RESCUED] >= 300
    assert outcomes[CheckOutcome.STOPPED_EARLY] >= 30


def test_guard_that_stops_at_once_is_reported_as_broken() -> None:
    report = run_guard_check(
        run_own_loop,
        [scenario for scenario in SCENARIOS if scenario.name.startswith("stubborn")],
        lambda: Guard(localizer="first_finding", recover=RecoveryPolicy(on_fail="stop")),
    )
    assert report.count_outcomes()[CheckOutcome.BROKEN] > 0


def test_world_that_raises_is_reported_with_its_error() -> None:
    def world(guard: Guard, played: ContractRun) -> None:
        raise ValueError("no framework")

    report = run_guard_check(world, SCENARIOS[:2])
    assert report.to_dict()["failing_in_framework"] == ["ValueError: no framework"]
    assert not any(one.plain.passes for one in report.comparisons)


def test_command_prints_the_report_and_fails_for_unknown_module() -> None:
    result = CliRunner().invoke(build_app(), ["guard-check", "--every", "60", "--json"])
    assert result.exit_code == 0, result.output
    assert orjson.loads(result.stdout)["outcomes"]["broken"] == 0
    assert "scenarios" in CliRunner().invoke(build_app(), ["guard-check", "--every", "200"]).stdout
    unknown = CliRunner().invoke(build_app(), ["guard-check", "no.such.module:world"])
    assert unknown.exit_code == 2
