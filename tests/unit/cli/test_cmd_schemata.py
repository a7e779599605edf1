from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner, Result

from agentguard.cli.app import build_app
from agentguard.schemata.persistence import FileSchemaStore
from agentguard.schemata.serialization import read_schemata
from agentguard.schemata.signal_trainer import distill_records
from agentguard.taxonomy.parser import read_taxonomy
from agentguard.trajectory.event_log.log_file import write_log
from agentguard.trajectory.model import Annotation
from tests.unit.judge.runs import group_chat


def call(*arguments: object) -> Result:
    return CliRunner().invoke(build_app(), ["schemata", *map(str, arguments)])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write annotated failures as an event log."""
    path = tmp_path_factory.mktemp("runs") / "runs.jsonl"
    for number in range(12):
        write_log(group_chat(number), path)
    return path


@pytest.fixture
def held(runs: Path, tmp_path: Path) -> Path:
    path = tmp_path / "s.jsonl"
    assert call("distill", runs, "--output", path).exit_code == 0
    return path


def test_failures_are_distilled_once(runs: Path, tmp_path: Path) -> None:
    place = tmp_path / "s.jsonl"
    first = orjson.loads(call("distill", runs, "--output", place, "--json").stdout)
    assert (first["read"], first["known"]) == (12, 0)
    assert first["added"] + first["merged"] == 12
    again = orjson.loads(call("distill", runs, "--output", place, "--json").stdout)
    assert (again["added"], again["merged"], again["known"]) == (0, 0, 12)
    assert sum(one.support for one in read_schemata(place)) == 12


@pytest.mark.process
def test_batch_gives_the_same_schemata(runs: Path, held: Path, tmp_path: Path) -> None:
    place, options = tmp_path / "batch.jsonl", ("--batch-output", tmp_path / "out", "--json", "--output")
    counts = orjson.loads(call("distill", runs, *options, place).stdout)
    assert (counts["read"], counts["broken"], counts["passed_over"]) == (12, 0, 0)
    assert [one.id for one in read_schemata(place)] == [one.id for one in read_schemata(held)]
    again = orjson.loads(call("distill", runs, *options, place).stdout)
    assert (again["read"], again["known"]) == (12, 12)


def test_batch_dry_run_writes_no_schema(runs: Path, tmp_path: Path) -> None:
    place = tmp_path / "s.jsonl"
    result = call("distill", runs, "--batch-output", tmp_path / "out", "--dry-run", "--output", place)
    assert (result.exit_code, "1 file," in result.stdout, place.exists()) == (0, True, False)


def test_database_holds_the_same_schemata(runs: Path, held: Path, tmp_path: Path) -> None:
    place = tmp_path / "s.db"
    assert call("distill", runs, "--store", place).exit_code == 0
    ids = [one["id"] for one in orjson.loads(call("list", "--store", place, "--json").stdout)]
    assert sorted(ids) == sorted(one.id for one in read_schemata(held))


def test_unannotated_runs_are_diagnosed_on_request(tmp_path: Path) -> None:
    log, place = tmp_path / "runs.jsonl", tmp_path / "s.jsonl"
    for number in range(3):
        write_log(replace(group_chat(number), annotation=Annotation()), log)
    assert call("distill", log, "--output", place).exit_code == 2
    result = orjson.loads(call("distill", log, "--output", place, "--diagnosed", "--json").stdout)
    assert result["passed_over"] + result["added"] + result["merged"] == 3


def test_unreadable_input_is_an_error(tmp_path: Path) -> None:
    result = call("distill", tmp_path / "nothing.json", "--output", tmp_path / "s.jsonl")
    assert result.exit_code == 2
    assert "nothing.json" in result.stderr


def test_exactly_one_location_is_accepted(runs: Path, tmp_path: Path) -> None:
    result = call("distill", runs, "--output", tmp_path / "s.jsonl", "--store", tmp_path / "s.db")
    assert result.exit_code == 2
    assert "not both" in result.stderr
    assert "--judge" in call("distill", runs, "--judge-model", "m").stderr


def test_schema_is_listed_shown_and_counted(held: Path) -> None:
    schemata = read_schemata(held)
    assert schemata[0].id[:6] in call("list", "--store", held).stdout
    shown = call("show", schemata[0].id[:8], "--store", held).stdout
    assert "Signature" in shown
    assert (
        orjson.loads(call("show", schemata[0].id, "--store", held, "--json").stdout)["id"] == schemata[0].id
    )
    counts = orjson.loads(call("stats", "--store", held, "--json").stdout)
    assert (counts["schemata"], counts["failures"]) == (len(schemata), 12)
    assert "origin: natural" in call("stats", "--store", held).stdout


@pytest.mark.parametrize("command", ["list", "stats", "show x", "confirm x", "select --budget 2", "induce"])
def test_missing_location_is_an_error_and_not_created(command: str, tmp_path: Path) -> None:
    for name in ("none.jsonl", "none.db"):
        result = call(*command.split(), "--store", tmp_path / name)
        assert result.exit_code == 2
        assert result.stderr.startswith("error: ")
        assert not (tmp_path / name).exists()


def test_ambiguous_id_is_rejected(held: Path) -> None:
    assert "no schema has" in call("show", "zzz", "--store", held).stderr
    copies = [replace(read_schemata(held)[0], id=name) for name in ("ab1", "ab2")]
    FileSchemaStore(held).upsert(copies)
    assert "2 schemata have" in call("show", "ab", "--store", held).stderr


def test_steps_find_their_nearest_schemata(runs: Path, held: Path) -> None:
    found = orjson.loads(call("search", runs, "--store", held, "-k", 1, "--json").stdout)
    assert len(found) > 1
    assert all(len(row["schemata"]) == 1 for row in found)
    step = found[-1]["step"]
    (one,) = orjson.loads(call("search", runs, "--step", step, "--store", held, "-k", 1, "--json").stdout)
    assert one == found[-1]
    assert "similarity" in call("search", runs, "--store", held).stdout
    assert call("search", runs, "--step", 99, "--store", held).exit_code == 2


def test_budget_limits_selection(held: Path, tmp_path: Path) -> None:
    kept = orjson.loads(
        call("select", "--budget", 1, "--store", held, "--output", tmp_path / "k.jsonl", "--json").stdout
    )
    assert [one["id"] for one in kept] == [one.id for one in read_schemata(tmp_path / "k.jsonl")]
    assert len(kept) == 1


def test_people_confirm_and_refute_schemata(held: Path) -> None:
    name = read_schemata(held)[0].id
    assert "confirmed 1, refuted 0" in call("confirm", name, "--store", held).stdout
    for _ in range(6):
        result = call("refute", name, "--store", held)
    assert "retired" in result.stdout
    assert {one.id: one.status.value for one in read_schemata(held)}[name] == "retired"


def test_accepted_proposals_become_codes(held: Path, tmp_path: Path) -> None:
    held.unlink()
    made = distill_records([group_chat(number) for number in range(12)])[0]
    FileSchemaStore(held).upsert([replace(one, codes=()) for one in made])
    options = ("--min-support", 2, "--store", held)
    proposals = orjson.loads(call("induce", *options, "--json").stdout)
    code, file = proposals[0]["code"], tmp_path / "mine.yaml"
    assert code in call("induce", *options, "--output", tmp_path / "all.yaml").stdout
    assert call("accept", code, "--into", file, *options).exit_code == 0
    assert [one.id for one in read_taxonomy(file).codes] == [code]
    assert "there are:" in call("accept", "nothing", "--into", file, *options).stderr


def test_distill_of_runs_without_annotation_names_the_option(tmp_path: Path) -> None:
    sample = Path(__file__).resolve().parents[3] / "samples" / "11-letter.json"
    command = ["schemata", "distill", str(sample), "--output", str(tmp_path / "schemata.jsonl")]
    result = CliRunner().invoke(build_app(), command)
    assert result.exit_code == 2
    assert "1 without a known failure" in result.output
    assert "--diagnosed" in result.output
