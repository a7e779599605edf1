"""Contract of the transports under frameworks that are not test dependencies; absent ones are skipped."""

from __future__ import annotations

from typing import Any

import pytest

from agentguard.guard import Guard
from agentguard.testing.contracts.integrations import CHECKS
from agentguard.testing.guard_check import build_scenarios, run_guard_check
from tests.contract.client_framework_drivers import CLIENT_FRAMEWORK_DRIVERS

every = pytest.mark.parametrize("framework", CLIENT_FRAMEWORK_DRIVERS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@every
def test_framework_with_guarded_client_satisfies_the_contract(framework: str, check: Any) -> None:
    pytest.importorskip(framework)
    check(CLIENT_FRAMEWORK_DRIVERS[framework])


@every
def test_framework_with_guarded_client_breaks_no_scripted_run(framework: str) -> None:
    pytest.importorskip(framework)
    sample = build_scenarios()[::37]
    report = run_guard_check(
        CLIENT_FRAMEWORK_DRIVERS[framework], sample, lambda: Guard(localizer="first_finding")
    )
    assert report.to_dict()["broken"] == []
    assert report.compute_call_growth() <= 0.05
    assert any(one.plain.passes for one in report.comparisons)
