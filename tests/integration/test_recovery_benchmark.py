"""The recovery benchmark: its budget, its journal and its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("textworld", reason="needs the extra textworld")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]
ARMS = {"none", "plain_retry", "restart", "agentdebug", "agentguard"}


def bench(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/recovery.py", "--difficulty", "easy", "--acceptance", "half"]
    command += ["--games-folder", str(folder / "games"), "--journal", str(folder / "played.jsonl"), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)


def test_benchmark_counts_stores_and_reports(tmp_path: Path) -> None:
    journal = tmp_path / "played.jsonl"
    assert bench(tmp_path, "--games", "1", "--seed", "9").returncode == 0
    first = journal.read_text()
    ended = bench(tmp_path, "--games", "2", "--seed", "9", "--json")
    assert ended.returncode == 0, ended.stderr
    assert journal.read_text().startswith(first), "what was played is not played again"
    found = json.loads(ended.stdout)
    assert set(found["success"]) == ARMS
    assert {"false_alarm_loss", "hit_rate", "mark", "curve", "gain_over", "wasted_turns"} <= set(found)
    assert found["mark"]["peer_at"] == 5 * found["mark"]["ours_at"] / 2
    for line in journal.read_text().splitlines():
        told = json.loads(line)
        most = int(told["key"][0].rpartition(" ")[2])
        result = told["result"]
        assert 0 < result["steps"] <= result["calls"] <= most
        assert result["line"] <= result["steps"]
        assert result["hit"] <= result["reached"] <= result["aimed"]
    assert found["success"]["none"] <= found["success"]["plain_retry"]


def test_unreadable_journal_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "played.jsonl").write_text('{"key": [], "result": {"lost": 1}}\n')
    ended = bench(tmp_path, "--games", "1")
    assert ended.returncode != 0
    assert "line 1" in ended.stderr
