"""``agentguard dataset``: list, verification of a copy, and generation."""

from __future__ import annotations

import json
import shutil
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.evals.datasets import rebuild
from agentguard.evals.datasets.toml_writer import dumps
from agentguard.evals.datasets.verification import compute_checksums
from agentguard.plugins import Registry
from agentguard.trajectory.event_log.log_file import write_log
from agentguard.trajectory.model import Record
from tests.data import shared_data
from tests.unit.evals.inject.runs import shop
from tests.unit.trajectory.formats.samples import SAMPLES


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(build_app(), ["dataset", *map(str, arguments)])


def test_list_and_show_describe_data_sets() -> None:
    listed = json.loads(run("list", "--json").stdout)
    assert {"tau_bench", "who_and_when"} <= {one["name"] for one in listed}
    assert all(one["obtain"] and one["licence"] and one["origin"] for one in listed)
    assert "who_and_when" in run("list").output
    shown = run("show", "who_and_when").output
    assert "from its owners" in shown
    assert "## Notes for measurements" in shown
    assert json.loads(run("show", "who_and_when", "--json").stdout)["card"].startswith("# Who&When")
    unknown = run("show", "who_and_wehn")
    assert unknown.exit_code == 2
    assert "did you mean who_and_when" in unknown.output


def test_own_runs_become_a_data_set(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    for name in ("one", "two", "two"):
        write_log(shop(), runs / f"{name}.jsonl")
    built = run("build", runs, "--name", "shop", "--format", "event_log", "--licence", "ours")
    assert built.exit_code == 0
    again = run("build", runs, "--name", "shop", "--format", "event_log")
    assert again.exit_code == 2
    assert "--force" in again.output
    found = run("verify", "shop", "--datasets", runs, "--json")
    assert found.exit_code == 0
    told = json.loads(found.stdout)
    assert told["records"] == told["labels"]["failed"] == 3
    assert {file["status"] for file in told["files"]} == {"ok"}
    with (runs / "two.jsonl").open("ab") as file:
        file.write(b'{"event": "step"\n')
    spoilt = run("verify", "shop", "--datasets", runs)
    assert spoilt.exit_code == 1
    assert "two.jsonl is changed" in spoilt.output
    assert "two.jsonl,record" in "".join(spoilt.output.split())  # a long path may break the line


def test_joined_files_of_a_folder_are_read_together(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(SAMPLES / "agentrx.folder", runs)
    built = run("build", runs, "--name", "retail", "--format", "agentrx", "--json")
    assert json.loads(built.stdout)["records"] == 2
    told = json.loads(run("verify", "retail", "--datasets", runs, "--json").stdout)
    assert told["ok"]
    assert told["labels"]["root_cause.step"] == 1


def test_build_validates_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for arguments in (
        (tmp_path / "runs",),
        (tmp_path / "runs", "--name", "x", "--format", "event_log"),
        (tmp_path / "runs", "--name", "x", "--format", "event_log", "--origin", "dreamt"),
        (tmp_path / "absent", "--name", "x", "--format", "event_log"),
        ("who_and_when",),
    ):
        result = run("build", *arguments)
        assert result.exit_code == 2
        assert result.output.startswith("error: ")


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Replace the slow game generator by one that returns a few runs."""
    module = types.ModuleType("generator")

    def generate(*, failed: int, passed: int, seed: int) -> list[Record]:
        run = shop().trajectory
        return [
            replace(shop(), trajectory=replace(run, id=f"{seed}-run-{n}")) for n in range(failed + passed)
        ]

    module.generate = generate  # type: ignore[attr-defined]
    registry = Registry("generator", group="none", builtin={})
    registry.register("textworld", generate)
    monkeypatch.setattr(rebuild, "_REGISTRY", registry)
    return module


@pytest.fixture
def made(tmp_path: Path, generator: types.ModuleType) -> Path:
    """Store a generated set of five runs."""
    folder = tmp_path / "made"
    folder.mkdir()
    for record in generator.generate(failed=3, passed=2, seed=7):
        write_log(record, folder / "runs.jsonl")
    found = compute_checksums(folder / "runs.jsonl")
    data = {
        "name": "made", "title": "Made", "format": "event_log", "licence": "Apache-2.0", "origin": "injected",
        "redistributed": True, "records": 5,
        "file": [{"path": "runs.jsonl", "sha256": found.sha256, "size": found.size}],
        "build": {"by": "textworld", "failed": 3, "passed": 2, "seed": 7},
    }  # fmt: skip
    (folder / "manifest.toml").write_text(dumps(data))
    return folder


def test_generated_set_is_built_again(made: Path, tmp_path: Path) -> None:
    result = run("build", "made", "--datasets", made, "--json", "--output", tmp_path / "again.jsonl")
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert (told["records"], told["compared"], told["same_sum"]) == (5, 5, True)
    assert (tmp_path / "again.jsonl").read_bytes() == (made / "runs.jsonl").read_bytes()
    quick = run("build", "made", "--datasets", made, "--json", "--limit", 2)
    assert json.loads(quick.stdout)["compared"] == 2
    assert quick.exit_code == 0


def test_stored_part_is_a_prefix_of_the_set(made: Path) -> None:
    text = (made / "manifest.toml").read_text()
    (made / "manifest.toml").write_text(text.replace("failed = 3", "failed = 30\nfirst = 5"))
    told = json.loads(run("build", "made", "--datasets", made, "--json").stdout)
    assert (told["records"], told["same_sum"]) == (5, True)


@pytest.mark.parametrize("change", ["seed = 7|seed = 8", "failed = 3|failed = 2", "failed = 3|failed = 4"])
def test_different_rebuild_is_reported(made: Path, change: str) -> None:
    text = (made / "manifest.toml").read_text()
    (made / "manifest.toml").write_text(text.replace(*change.split("|")))
    result = run("build", "made", "--datasets", made)
    assert result.exit_code == 1
    assert "differs" in result.output


@pytest.mark.parametrize("change", ["seed = 7|sed = 7", "seed = 7|seed = 7\nfirst = -1"])
def test_invalid_numbers_are_reported(made: Path, change: str) -> None:
    text = (made / "manifest.toml").read_text()
    (made / "manifest.toml").write_text(text.replace(*change.split("|")))
    result = run("build", "made", "--datasets", made)
    assert result.exit_code == 2
    assert "[build] of made" in result.output


def test_missing_copy_is_not_compared(made: Path) -> None:
    (made / "runs.jsonl").unlink()
    result = run("build", "made", "--datasets", made, "--limit", 1)
    assert result.exit_code == 0
    assert "this installation has no runs of made" in result.output
    assert run("verify", "made", "--datasets", made).exit_code == 2


def test_third_party_copies_are_verified() -> None:
    for name, path, records in (
        ("tau_bench", "tau_bench/gpt-4o-airline.dev.json", 128),
        ("who_and_when", "who_and_when", 142),
    ):
        told = json.loads(run("verify", name, shared_data(path), "--json").stdout)
        assert told["records"] == records
        assert not told["broken"]
        assert all(len(file["sha256"]) == 64 for file in told["files"])
        assert all(told["labels"].values())
