"""The guard breaks no scripted run, and rescues, stops or contains the failing ones."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import orjson
import pytest
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.errors import ConfigError
from agentguard.guard import Guard
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.testing.contracts.integrations import (
    TASK,
    AgentDriver,
    ContractRequest,
    ContractRun,
    RunFeature,
    supports,
)
from agentguard.testing.guard_check import build_scenarios, check_driver, run_guard_check
from agentguard.testing.guard_check.check import CheckOutcome, run_guarded, run_plain
from agentguard.testing.guard_check.loop_driver import run_loop_agent
from agentguard.testing.guard_check.scripted_run import ScriptedRun
from tests.support.guard_check import INSISTENT_NAMES, list_harmful_names

SCENARIOS = build_scenarios()


def test_scenarios_are_unique_and_cover_both_corpora() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
    passing = sum(run_plain(scenario).passes for scenario in SCENARIOS)
    assert passing >= 300
    assert len(SCENARIOS) - passing >= 300


def test_default_guard_of_own_loop_breaks_no_run() -> None:
    report = run_guard_check(run_loop_agent, SCENARIOS, lambda: Guard(localizer="first_finding"))
    assert [one.scenario.name for one in report.list_broken()] == []
    assert report.compute_call_growth() <= 0.05
    assert list_harmful_names(report) == INSISTENT_NAMES
    outcomes = report.count_outcomes()
    assert outcomes[CheckOutcome.RESCUED] >= 300
    assert outcomes[CheckOutcome.STOPPED_EARLY] >= 30


def test_guard_that_stops_at_once_is_reported_as_broken() -> None:
    report = run_guard_check(
        run_loop_agent,
        [scenario for scenario in SCENARIOS if scenario.name.startswith("stubborn")],
        lambda: Guard(localizer="first_finding", recover=RecoveryPolicy(on_fail="stop")),
    )
    assert report.count_outcomes()[CheckOutcome.BROKEN] > 0


def test_scenario_of_an_undeclared_feature_is_counted_as_not_run() -> None:
    @supports(RunFeature.CANCELLATION)
    def driver(guard: Guard, played: ContractRun) -> None:
        run_loop_agent(guard, played)

    needs = [one for one in SCENARIOS if one.feature in (RunFeature.CANCELLATION, RunFeature.APPROVAL)]
    report = run_guard_check(driver, needs)
    assert {one.scenario.feature for one in report.comparisons} == {RunFeature.CANCELLATION}
    assert report.to_dict()["not_run"] == {"approval": len(needs) - len(report.comparisons)}


def test_cancelled_run_with_another_booking_after_it_does_not_pass() -> None:
    def driver(guard: Guard, played: ContractRun) -> None:
        with suppress(asyncio.CancelledError):
            run_loop_agent(guard, played)
        played.book(4)
        raise asyncio.CancelledError

    scenario = next(one for one in SCENARIOS if one.name == "cancelled/book/1/declared")
    result = run_guarded(driver, scenario)
    assert (result.passes, result.harm) == (False, 1)


def test_cancelled_booking_leaves_an_attempted_effect() -> None:
    scenario = next(one for one in SCENARIOS if one.name == "cancelled/book/1/declared")
    run = ScriptedRun({"own": []}, scenario=scenario)
    guard = Guard(localizer="first_finding")
    guard.tool(effect="destructive")(run.book)
    with pytest.raises(asyncio.CancelledError):
        run_loop_agent(guard, run)
    assert [effect.state.value for effect in run.session.ledger.effects()] == ["attempted"]


def _ignore_run(guard: Guard, played: ContractRun) -> None:
    """Do nothing with the run."""


def _call_model_forever(guard: Guard, played: ContractRun) -> None:
    while True:
        played.next_answer(ContractRequest("own", [TASK], []))


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        (_ignore_run, "0 requests to the model"),
        (_call_model_forever, "continues after 200 requests"),
        (len, "TypeError"),
    ],
)
def test_unusable_driver_is_rejected(driver: AgentDriver, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_driver(driver)


def test_driver_that_raises_is_reported_with_its_error() -> None:
    def driver(guard: Guard, played: ContractRun) -> None:
        raise ValueError("no framework")

    report = run_guard_check(driver, SCENARIOS[:2])
    assert report.to_dict()["failing_in_framework"] == ["ValueError: no framework"]
    assert not any(one.plain.passes for one in report.comparisons)


def test_command_prints_the_report_and_fails_for_unknown_module() -> None:
    result = CliRunner().invoke(build_app(), ["guard-check", "--every", "60", "--json"])
    assert result.exit_code == 0, result.output
    assert orjson.loads(result.stdout)["outcomes"]["broken"] == 0
    assert "scenarios" in CliRunner().invoke(build_app(), ["guard-check", "--every", "200"]).stdout
    unknown = CliRunner().invoke(build_app(), ["guard-check", "no.such.module:driver"])
    assert unknown.exit_code == 2
