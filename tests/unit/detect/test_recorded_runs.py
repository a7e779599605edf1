"""The detectors on recorded runs: no finding in passed runs, and no exception."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentguard.detect.detection import detect
from agentguard.trajectory.formats.reader import load_records, load_trajectory
from agentguard.trajectory.model import Record
from tests.data import shared_data

SAMPLES = Path(__file__).resolve().parents[3] / "samples"


@pytest.fixture(scope="module")
def airline() -> list[Record]:
    return load_records(shared_data("tau_bench/gpt-4o-airline.dev.json"))


def loud(record: Record, minimum: float = 0.5) -> set[str]:
    result = detect(record.trajectory, deadline_s=60)
    assert result.failures == ()
    return {finding.detector for finding in result.findings if finding.probability >= minimum}


def test_passed_runs_have_fewer_findings_than_failed_ones(airline: list[Record]) -> None:
    passed = [loud(record, 0.35) for record in airline if record.annotation.failed is False]
    failed = [loud(record, 0.35) for record in airline if record.annotation.failed]
    assert len(passed) == 50
    assert len(failed) == 78
    quiet = sum(map(bool, passed)) / len(passed)
    assert quiet <= 0.10
    assert sum(map(bool, failed)) / len(failed) > 2 * quiet


def test_single_error_has_low_probability(airline: list[Record]) -> None:
    passed = [detect(r.trajectory).findings for r in airline if r.annotation.failed is False]
    errors = [f for findings in passed for f in findings if f.detector == "tool_error"]
    assert errors
    assert all(finding.probability < 0.5 for finding in errors)


@pytest.mark.parametrize("part", ["Algorithm-Generated", "Hand-Crafted"])
def test_detectors_do_not_fail_on_multi_agent_runs(part: str) -> None:
    records = load_records(shared_data(f"who_and_when/{part}"))
    assert len(records) >= 45
    assert sum(map(bool, map(loud, records))) < len(records) / 2


@pytest.mark.parametrize("name", ["01-banana-and-pepper", "02-teapot", "03-lantern"])
def test_own_passed_runs_have_no_findings(name: str) -> None:
    findings = detect(load_trajectory(SAMPLES / f"{name}.json")).findings
    assert all(finding.probability < 0.5 for finding in findings)


@pytest.mark.parametrize(
    ("name", "detector", "step"),
    [
        ("04-wine-bottle", "exact_loop", 8),
        ("05-potato-and-pork", "exact_loop", 15),
        ("06-violin", "oscillation", 8),
        ("07-medicine-and-towel", "contradicted_claim", 7),
        ("08-lettuce-and-apple", "premature_end", 13),
        ("11-letter", "no_progress", 5),
        ("13-pepper-and-potato", "schema_violation", 13),
        ("14-blanket", "unparsable_action", 8),
    ],
)
def test_errors_of_own_failed_runs_are_found(name: str, detector: str, step: int) -> None:
    findings = detect(load_trajectory(SAMPLES / f"{name}.json")).findings
    assert (detector, step) in {(finding.detector, finding.step) for finding in findings}
