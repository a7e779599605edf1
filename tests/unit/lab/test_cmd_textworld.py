"""``agentguard textworld`` with real games: readable output, continuation, and verification."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.evals.datasets.toml_writer import dumps
from agentguard.evals.datasets.verification import compute_checksums
from agentguard.trajectory.formats.reader import load_records

pytest.importorskip("textworld")
# Third-party warnings of the game engine are not our errors.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

NUMBERS = ("--failed", "2", "--passed", "1", "--seed", "5", "--difficulty", "easy")


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(build_app(), [*map(str, arguments)])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    result = run("textworld", *NUMBERS, "--output", folder / "runs.jsonl.gz", "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert (summary["failed"], summary["passed"], summary["origin"]) == (2, 1, "injected")
    assert sum(summary["by_code"].values()) == 2
    return folder


def test_written_runs_are_read_with_labels(made: Path) -> None:
    records = load_records(made / "runs.jsonl.gz")
    assert sorted(r.annotation.failed for r in records) == [False, True, True]
    for record in records:
        if record.annotation.failed:
            assert 0 <= record.annotation.root_cause.step < len(record.trajectory.steps)
            assert record.annotation.extra["origin"] == "injected"


def test_interrupted_generation_resumes(made: Path, tmp_path: Path) -> None:
    import gzip

    plain = gzip.decompress((made / "runs.jsonl.gz").read_bytes())
    (tmp_path / "runs.jsonl.part").write_bytes(plain[: len(plain) // 2])
    result = run("textworld", *NUMBERS, "--output", tmp_path / "runs.jsonl", "--resume", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["kept"] >= 1
    assert (tmp_path / "runs.jsonl").read_bytes() == plain


def test_generated_set_is_verified_and_rebuilt(made: Path) -> None:
    found = compute_checksums(made / "runs.jsonl.gz")
    how = {"by": "textworld", "failed": 2, "passed": 1, "seed": 5, "difficulty": "easy"}
    file = {"path": "runs.jsonl.gz", "sha256": found.sha256, "unpacked_sha256": found.unpacked_sha256}
    data = {
        "name": "few_games", "title": "A few games", "format": "event_log", "licence": "Apache-2.0",
        "origin": "injected", "redistributed": True, "records": 3, "labels": ["failed", "root_cause.step"],
        "file": [file], "build": how,
    }  # fmt: skip
    (made / "manifest.toml").write_text(dumps(data), encoding="utf-8")
    assert run("dataset", "verify", "few_games", "--datasets", made).exit_code == 0
    again = run("dataset", "build", "few_games", "--datasets", made, "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["same_sum"] is True
