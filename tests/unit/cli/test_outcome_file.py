from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.cli.outcome_file import KnownOutcomes, read_outcomes
from agentguard.errors import ConfigError
from agentguard.trajectory.model import Annotation, Record, Trajectory


@pytest.mark.parametrize(
    "text",
    [
        "run_id,outcome\na,failed\nb,passed\nc,0.4\n",
        "id,score\na,0\nb,1\nc,0.99\n",
        "run_id,failed\na,1\nb,0\nc,true\n",
        '{"a": "failed", "b": true, "c": 0.4}',
        '[{"run_id": "a", "outcome": "fail"}, {"id": "b", "passed": true}, {"id": "c", "success": 0}]',
        '{"run_id": "a", "reward": 0.0}\n{"run_id": "b", "reward": 1}\n{"run_id": "c", "reward": 0.5}\n',
    ],
)
def test_read_outcomes_in_every_form_returns_whether_each_run_failed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "outcomes"
    path.write_text(text)
    assert read_outcomes(path) == {"a": True, "b": False, "c": True}


def test_read_outcomes_with_pass_score_accepts_lower_scores(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    path.write_text("run_id,score\na,0.7\nb,0.2\n")
    assert read_outcomes(path, pass_score=0.5) == {"a": False, "b": True}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run_id,outcome\na,maybe\n", "line 2: 'maybe' is not an outcome"),
        ("name,value\na,failed\n", "line 2: no run id or no outcome"),
        ("run_id,outcome\na,failed\na,passed\n", "line 3: run 'a' has another outcome above"),
        ('{"a": "nan"}', "entry 'a': 'nan' is not an outcome"),
        ('{"a": ', "is not valid JSON"),
        ("[1]", "entry 1: no run id or no outcome"),
    ],
)
def test_read_outcomes_with_a_bad_entry_names_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "outcomes"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_outcomes(path)


def test_read_outcomes_of_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_outcomes(tmp_path / "absent.csv")


def test_recorded_outcomes_are_used_only_on_request() -> None:
    record = Record(
        trajectory=Trajectory(id="a", format="test", task="", steps=()), annotation=Annotation(failed=True)
    )
    for option, expected in (("recorded", True), (None, None)):
        known = KnownOutcomes.from_option(option, pass_score=1.0)
        known.add_recorded(record)
        assert known.find("a") is expected


SAMPLE = "samples/04-wine-bottle.json"


def test_outcomes_that_match_no_run_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.csv"
    path.write_text("run_id,outcome\nzzz,failed\n04-wine-bottle,failed\n")
    result = CliRunner().invoke(build_app(), ["diagnose", SAMPLE, "--outcomes", str(path)])
    assert result.exit_code == 0
    assert f"{path}: 1 of 2 ids match no run: zzz" in result.stderr


def test_outcomes_without_any_matching_run_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.csv"
    path.write_text("run_id,failed\nzzz,true\n")
    result = CliRunner().invoke(build_app(), ["diagnose", SAMPLE, "--outcomes", str(path)])
    assert result.exit_code == 2
    assert f"{path}: no run has one of its ids (zzz)" in result.stderr


def test_outcomes_of_all_runs_cause_no_message(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.json"
    path.write_text('{"04-wine-bottle": "failed"}')
    result = CliRunner().invoke(build_app(), ["diagnose", SAMPLE, "--outcomes", str(path)])
    assert result.exit_code == 0
    assert "match no run" not in result.output
