"""The benchmarks of a chat judge, each against an endpoint that answers as vLLM does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.judge.chat_server import serving

pytestmark = [pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "tests" / "contract" / "samples" / "who_and_when.json"


@pytest.fixture
def url() -> Iterator[str]:
    with serving() as (address, _):
        yield address


def bench(name: str, url: str, *options: str) -> dict[str, Any]:
    command = [sys.executable, f"benchmarks/{name}.py", *options, "--base-url", url, "--json"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_judge_measures_the_cost_of_each_procedure(url: str) -> None:
    found = bench("judge", url, str(RUNS), "--arms", "fused", "diagnosis")
    assert found["runs"] == 1
    assert found["calls"]["diagnosis"] == found["calls"]["fused"] + 1, "it also asks whether the run failed"
    assert found["faults"] == {"fused": 0, "diagnosis": 0}


def test_judge_without_minutes_measures_the_throughput_at_each_number_of_runs(url: str) -> None:
    found = bench("judge", url, str(RUNS), "--minutes", "0", "--at-once", "1", "16")
    assert found["runs"] == 0
    assert [fast["at_once"] for fast in found["throughput"]] == [1, 16]
    for fast in found["throughput"]:
        assert fast["runs"] == 1
        assert fast["without_judge"] == 0
        assert fast["steps_a_second"] > 0
        assert fast["questions_a_second"] > 0


def test_attacks_and_safety_name_the_model_of_the_endpoint(url: str) -> None:
    assert bench("attacks", url, "--only", "ignore_previous")["model"] == "judge (small)"
    assert bench("safety", url)["model"] == "judge (small)"
