"""Durable answers of judges: commands with a store never ask a judge the same question twice."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

import agentguard
from agentguard.cli.app import build_app
from agentguard.store import Store
from tests.unit.evals.datasets.test_dataset import run_file
from tests.unit.judge.chat_server import serving

SAMPLE = Path("samples/02-teapot.json")


def call(*arguments: object) -> tuple[str, str]:
    result = CliRunner().invoke(build_app(), [str(one) for one in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_second_diagnosis_with_a_store_asks_the_judge_nothing(tmp_path: Path) -> None:
    url = tmp_path / "s.db"
    with serving() as (judge, script):
        command = ("diagnose", SAMPLE, "--judge", judge, "--json", "--store", url)
        first, counts = call(*command)
        asked = len(script.seen)
        assert asked
        assert "questions asked, 0 answered from the cache" in counts
        again, counts = call(*command)
        assert len(script.seen) == asked
        assert "judge: 0 questions asked" in counts
    usage = orjson.loads(again)["usage"]
    assert (usage["calls"], usage["cached_answers"] > 0) == (0, True)
    assert orjson.loads(again)["probability"] == orjson.loads(first)["probability"]
    report, _ = call("runs", "show", orjson.loads(again)["trajectory_id"], "--store", url)
    assert "0 calls" in report
    assert "from the cache" in report


def test_diagnosis_without_a_store_asks_again_and_counts(tmp_path: Path) -> None:
    with serving() as (judge, script):
        _, counts = call("diagnose", SAMPLE, "--judge", judge, "--json")
        asked = len(script.seen)
        call("diagnose", SAMPLE, "--judge", judge, "--json")
        assert len(script.seen) == 2 * asked
    assert "questions asked, 0 answered from the cache" in counts


def test_stored_run_of_a_tenant_keeps_its_answers_under_the_tenant(tmp_path: Path) -> None:
    url, run = tmp_path / "s.db", agentguard.load_trajectory(SAMPLE)
    with Store.open(url) as store:
        store.write_run(run, tenant="team")
    with serving() as (judge, script):
        command = (
            "diagnose",
            "--run-id",
            run.id,
            "--tenant",
            "team",
            "--judge",
            judge,
            "--store",
            url,
            "--json",
        )
        call(*command)
        asked = len(script.seen)
        call(*command)
        assert len(script.seen) == asked > 0
    with Store.open(url) as store:
        store.delete_run(run.id, tenant="team")
        assert store.get_stats().rows["verdicts"] == 0


def test_evaluation_keeps_answers_in_the_default_store_if_it_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTGUARD_STORE", str(tmp_path / "s.db"))
    (runs := tmp_path / "runs").mkdir()
    for number in range(5):
        (runs / f"{number}.json").write_text(run_file(question=f"Where is it {number}?", step="1"))
    with serving() as (judge, script):
        command = (
            *("eval", "who_and_when", runs, "--method", "all_at_once", "--no-save", "--no-resume", "--json"),
            *("--option", f"base_url={judge}", "--checkpoint", tmp_path / "c", "--repeats", 1),
        )
        call(*command)
        asked = len(script.seen)
        assert not (tmp_path / "s.db").exists(), "an evaluation makes no default store"
        call("store", "init")
        call(*command)
        assert len(script.seen) == 2 * asked > 0
        _, counts = call(*command)
        assert len(script.seen) == 2 * asked
    assert "judge: 0 questions asked" in counts
