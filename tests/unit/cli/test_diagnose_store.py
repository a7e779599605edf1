"""``agentguard diagnose --store`` keeps what it reads and what it says."""

from __future__ import annotations

from pathlib import Path

import orjson
from typer.testing import CliRunner

import agentguard
from agentguard.cli.app import build
from agentguard.localize.codec import decode_diagnosis
from agentguard.store import Store
from agentguard.trajectory.formats._fields import Node

SAMPLES = Path(__file__).resolve().parents[3] / "samples"


def test_runs_and_diagnoses_are_kept(tmp_path: Path) -> None:
    files = sorted(SAMPLES.glob("0[1-3]*.json"))
    url = tmp_path / "s.db"
    for _ in range(2):  # a run that is diagnosed again replaces itself, and has one diagnosis more
        result = CliRunner().invoke(build(), ["diagnose", *map(str, files), "--json", "--store", str(url)])
        assert result.exit_code == 0, result.output
    printed = [decode_diagnosis(Node.of(orjson.loads(line))) for line in result.stdout.splitlines()]
    with Store.open(url) as store:
        assert len(store.runs().rows) == len(files)
        for file, said in zip(files, printed, strict=True):
            run = agentguard.load_trajectory(file)
            assert store.trajectory(run.id) == run
            rows = store.diagnoses(run.id)
            assert len(rows) == 2
            assert decode_diagnosis(Node.of(rows[-1].data)) == said
            assert len(store.findings(run.id)) == len(said.findings)


def test_a_store_that_cannot_be_opened_is_one_clear_line(tmp_path: Path) -> None:
    file = str(SAMPLES / "02-teapot.json")
    result = CliRunner().invoke(build(), ["diagnose", file, "--store", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr.startswith("error:")
    assert "Traceback" not in result.stderr
