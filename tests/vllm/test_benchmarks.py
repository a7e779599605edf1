"""Benchmarks that take a real model, end to end on a real vLLM; not what the tiny model reaches."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("textworld", reason="needs the extra textworld")

from tests.vllm_server import VllmServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ROOT = Path(__file__).resolve().parents[2]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=1500
    )


def test_a_model_plays_the_games_of_the_recovery_benchmark(vllm: VllmServer, tmp_path: Path) -> None:
    journal = tmp_path / "played.jsonl"
    command = ["benchmarks/recovery.py", "--agent", "chat", "--base-url", vllm.url, "--mode", "choice"]
    command += [
        "--games",
        "1",
        "--difficulty",
        "easy",
        "--arms",
        "none,agentguard",
        "--journal",
        str(journal),
    ]
    first = run(*command)
    assert first.returncode == 0, first.stderr
    played = {told["key"][3]: told["result"] for told in map(json.loads, journal.read_text().splitlines())}
    assert set(played) == {"none", "agentguard"}
    asked = vllm.metrics()["vllm:request_success_total"]
    assert sum(result["calls"] for result in played.values()) <= asked
    for result in played.values():
        assert 0 < result["line"] <= result["steps"] <= result["calls"]
    again = run(*command)
    assert again.returncode == 0, again.stderr
    assert vllm.metrics()["vllm:request_success_total"] == asked, "what is in the journal is not played again"


def test_an_endpoint_that_cannot_be_reached_is_an_error_that_says_so(tmp_path: Path) -> None:
    del tmp_path
    ended = run("benchmarks/acceptance.py", "--base-url", "http://127.0.0.1:9/v1", "--tasks", "1")
    assert ended.returncode != 0
    assert "127.0.0.1:9" in ended.stderr


def test_the_acceptance_loop_runs_on_a_real_model(vllm: VllmServer) -> None:
    command = ["benchmarks/acceptance.py", "--base-url", vllm.url, "--tasks", "8", "--again", "2", "--json"]
    ended = run(*command, "--simulated", "20")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)["judge"]
    assert found["tasks"] == 8
    calls = [found["after"][str(again)]["calls"] for again in range(3)]
    accepted = [found["after"][str(again)]["accepted"]["share"] for again in range(3)]
    assert calls[0] == 1
    assert calls == sorted(calls)
    assert calls[2] <= 3
    assert accepted == sorted(accepted)
    assert found["after"]["0"]["tokens"] > 100
