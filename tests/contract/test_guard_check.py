"""The default guard breaks no scripted run and repeats no effect in any integration."""

from __future__ import annotations

import pytest

from agentguard.guard import Guard
from agentguard.testing.guard_check import build_scenarios, run_guard_check
from tests.contract.candidate_drivers import DRIVERS
from tests.support.guard_check import INSISTENT_NAMES, list_harmful_names

_SCENARIOS = build_scenarios()
_NAMES = {
    "parallel/read_and_booking/2/declared",
    "parallel/wait/2/HTTP 50/undeclared",
    "cancelled/find/1/seat 4/declared",
    "cancelled/book/2/undeclared",
    "cancelled/model/2/declared",
    "sub_agent/wait/2/HTTP 50/declared",
    "sub_agent/unknown_tool/1/undeclared",
    "sub_agent/loop/nothing /1/declared",
    "approval/1/find/declared",
    "approval/0/fly/undeclared",
    "structured/1/direct/declared",
    "structured/0/fly/undeclared",
    "transient/10/HTTP 50/declared",
    "wanted_repetition/2/book/declared",
    "repeated_booking/2/book/1/declared",
    "repeated_booking/2/find/2/undeclared",
}
SAMPLE = (
    *[one for one in _SCENARIOS if one.feature is None][::101],
    *(one for one in _SCENARIOS if one.name in _NAMES),
)


@pytest.mark.parametrize("driver", DRIVERS)
def test_default_guard_breaks_no_scripted_run(driver: str) -> None:
    report = run_guard_check(DRIVERS[driver], SAMPLE, lambda: Guard(localizer="first_finding"))
    assert report.to_dict()["broken"] == []
    assert report.compute_call_growth() <= 0.05
    assert list_harmful_names(report) <= INSISTENT_NAMES
    assert any(one.plain.passes for one in report.comparisons)


def test_sample_has_each_named_scenario() -> None:
    assert {one.name for one in SAMPLE} >= _NAMES
