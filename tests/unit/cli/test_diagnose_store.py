"""``agentguard diagnose --store`` stores the runs and their diagnoses."""

from __future__ import annotations

from pathlib import Path

import orjson
from typer.testing import CliRunner

import agentguard
from agentguard.cli.app import build_app
from agentguard.localize.serialization import decode_diagnosis
from agentguard.store import Store
from agentguard.trajectory._json_node import JsonNode

SAMPLES = Path(__file__).resolve().parents[3] / "samples"


def test_runs_and_diagnoses_are_stored(tmp_path: Path) -> None:
    files = sorted(SAMPLES.glob("0[1-3]*.json"))
    url = tmp_path / "s.db"
    for _ in range(2):  # a repeated diagnosis replaces the run and adds a diagnosis
        result = CliRunner().invoke(
            build_app(), ["diagnose", *map(str, files), "--json", "--store", str(url)]
        )
        assert result.exit_code == 0, result.output
    printed = [
        decode_diagnosis(JsonNode.from_value(orjson.loads(line))) for line in result.stdout.splitlines()
    ]
    with Store.open(url) as store:
        assert len(store.list_runs().rows) == len(files)
        for file, said in zip(files, printed, strict=True):
            run = agentguard.load_trajectory(file)
            assert store.get_trajectory(run.id) == run
            rows = store.list_diagnoses(run.id)
            assert len(rows) == 2
            assert decode_diagnosis(JsonNode.from_value(rows[-1].data)) == said
            assert len(store.list_findings(run.id)) == len(said.findings)


def test_unopenable_store_gives_one_clear_line(tmp_path: Path) -> None:
    file = str(SAMPLES / "02-teapot.json")
    result = CliRunner().invoke(build_app(), ["diagnose", file, "--store", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr.startswith("error:")
    assert "Traceback" not in result.stderr


def test_run_in_store_is_diagnosed_there(tmp_path: Path) -> None:
    url, run = str(tmp_path / "s.db"), agentguard.load_trajectory(SAMPLES / "02-teapot.json")
    with Store.open(url) as store:
        store.write_run(run, tenant="team")
    asked = ["diagnose", "--run-id", run.id, "--store", url, "--json"]
    result = CliRunner().invoke(build_app(), [*asked, "--tenant", "team"])
    assert result.exit_code == 0, result.output
    said = decode_diagnosis(JsonNode.from_value(orjson.loads(result.stdout)))
    assert said.trajectory_id == run.id
    with Store.open(url) as store:
        assert (
            decode_diagnosis(JsonNode.from_value(store.list_diagnoses(run.id, tenant="team")[0].data)) == said
        )
        assert store.list_findings(run.id, tenant="team")
        assert store.get_trajectory(run.id, tenant="team") == run
        assert not store.list_diagnoses(run.id)
    other = CliRunner().invoke(build_app(), asked)
    assert other.exit_code == 2
    assert f"has no run '{run.id}'" in other.stderr, "it is no other tenant's"


def test_files_and_sessions_are_mutually_exclusive() -> None:
    for asked in ([], ["--run-id", "x", str(SAMPLES / "02-teapot.json")]):
        result = CliRunner().invoke(build_app(), ["diagnose", *asked])
        assert result.exit_code == 2
        assert "--run-id" in result.stderr
