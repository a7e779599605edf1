"""Configuration of all tests: tiers, groups of parallel runs, Hypothesis profiles, and budgets of time.

Tiers, by folder:

- ``unit``: unit, contract and property tests. They start no server process of the product.
- ``process``: tests that start processes (faults, integration, security).
- ``browser``: tests with Chromium.
- ``model``: tests with the real vLLM or the sentence-embedding model. ``make test-all`` runs them.

Tests of one module share servers, so all tiers but ``unit`` keep a module on one worker (``--dist
loadgroup``).
"""

from __future__ import annotations

import gc
import os
import tomllib
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parent
TIERS = {
    "faults": "process",
    "integration": "process",
    "security": "process",
    "e2e": "browser",
    "vllm": "model",
}
PROCESSOR_TIME = "processor_time"
"""Attribute of a report; pytest-xdist sends it from the worker."""
MODEL_MODULES = {"test_minilm.py"}

# No example is timed, because machine speed varies; benchmarks/ measures speed.
# A change is tested with the same examples each time; `make test-all` draws new ones.
settings.register_profile(
    "landing",
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("all", settings.get_profile("landing"), max_examples=300, derandomize=False)
settings.load_profile("all" if os.environ.get("AGENTGUARD_TEST_ALL") else "landing")

# `judge serve` asks the hub for the configuration of a model that it does not know. Tests download nothing;
# without this, each such start waits for the retries of the hub's client on a machine without network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

_processor_times: dict[str, float] = defaultdict(float)


def tier_of(path: Path) -> str:
    """Return the tier of a test module."""
    if path.name in MODEL_MODULES:
        return "model"
    return TIERS.get(path.relative_to(ROOT).parts[0], "unit")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that checks the budgets of processor time."""
    parser.addoption("--check-budgets", action="store_true", help="fail if a tier exceeds tests/budgets.toml")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its tier, and group the tests of a module that share a server."""
    for item in items:
        tier = tier_of(item.path)
        item.add_marker(tier)
        if tier != "unit" and item.get_closest_marker("xdist_group") is None:
            group = "vllm" if tier == "model" else item.path.relative_to(ROOT).as_posix()
            item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish() -> None:
    """Collect garbage rarely, and exempt the collected tests.

    With the defaults of CPython, the garbage collector takes a third of the processor time of the unit tests:
    a process that has imported all frameworks has 600,000 objects, and each collection visits them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _read_processor_time() -> float:
    """Return the processor time of this process and of its ended child processes, in seconds."""
    return sum(os.times()[:4])


_processor_time = _read_processor_time()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the processor time since the last phase of a test to the report of this phase."""
    global _processor_time
    report = yield
    before, _processor_time = _processor_time, _read_processor_time()
    setattr(report, PROCESSOR_TIME, _processor_time - before)
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add the processor time of a test phase to its tier."""
    path = ROOT.parent / report.location[0]
    if path.is_relative_to(ROOT):
        _processor_times[tier_of(path)] += getattr(report, PROCESSOR_TIME)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the processor time of each tier beside its budget."""
    if not config.getoption("--check-budgets"):
        return
    budgets = tomllib.loads((ROOT / "budgets.toml").read_text())["seconds"]
    terminalreporter.section("processor time of each tier, in seconds")
    for tier, seconds in sorted(_processor_times.items()):
        note = "" if seconds <= budgets[tier] else "  EXCEEDED"
        terminalreporter.write_line(f"{tier:8} {seconds:6.0f} of {budgets[tier]:6}{note}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail the run if a tier exceeds its budget."""
    if (
        exitstatus != 0
        or not session.config.getoption("--check-budgets")
        or hasattr(session.config, "workerinput")
    ):
        return
    budgets = tomllib.loads((ROOT / "budgets.toml").read_text())["seconds"]
    if any(seconds > budgets[tier] for tier, seconds in _processor_times.items()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
