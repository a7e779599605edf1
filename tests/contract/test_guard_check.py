"""The default guard breaks no scripted run and repeats no effect in any integration."""

from __future__ import annotations

import pytest

from agentguard.guard import Guard
from agentguard.testing.guard_check import build_scenarios, run_guard_check
from tests.contract.candidate_worlds import WORLDS

_PARALLEL = ("parallel/read_and_booking/2/declared", "parallel/wait/2/HTTP 50/undeclared")
SAMPLE = (*build_scenarios()[::101], *(one for one in build_scenarios() if one.name in _PARALLEL))


@pytest.mark.parametrize("world", WORLDS)
def test_default_guard_breaks_no_scripted_run(world: str) -> None:
    report = run_guard_check(WORLDS[world], SAMPLE, lambda: Guard(localizer="first_finding"))
    assert report.to_dict()["broken"] == []
    assert report.compute_call_growth() <= 0.05
    assert sum(one.guarded.harm for one in report.comparisons) == 0
    assert any(one.plain.passes for one in report.comparisons)
