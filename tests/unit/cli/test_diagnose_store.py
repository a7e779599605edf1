"""``agentguard diagnose --store`` stores the runs and their diagnoses."""

from __future__ import annotations

from pathlib import Path

import orjson
from typer.testing import CliRunner

import agentguard
from agentguard.cli.app import build_app
from agentguard.localize.serialization import decode_diagnosis
from agentguard.store import Store
from agentguard.store.db.rows import JudgementRow
from agentguard.trajectory.json_node import JsonNode

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


def test_only_new_runs_are_diagnosed_again(tmp_path: Path) -> None:
    runs, url = tmp_path / "runs.jsonl", str(tmp_path / "s.db")
    lines = [
        orjson.dumps({"id": id, "messages": [{"role": "assistant", "content": id}]}) for id in ("a", "b", "c")
    ]
    asked = ["diagnose", str(runs), "--store", url, "--only-new", "--json"]
    diagnosed, file_id = [], f"{str(runs)[-120:]}:b"
    for content in (lines[:2], lines[:2], [lines[0], lines[1].replace(b'"b"}', b'"b!"}'), lines[2]]):
        runs.write_bytes(b"\n".join(content))
        result = CliRunner().invoke(build_app(), asked)
        assert result.exit_code == 0, result.output
        diagnosed.append([orjson.loads(line)["trajectory_id"] for line in result.stdout.splitlines()])
    assert diagnosed == [["a", "b"], [], [file_id, "c"]]
    assert "because the store has them with equal content: 1 run\n" in result.stderr
    with Store.open(url) as store:
        assert [len(store.list_diagnoses(id)) for id in ("a", "b", file_id, "c")] == [1, 1, 1, 1]


def test_only_new_without_store_is_refused() -> None:
    result = CliRunner().invoke(build_app(), ["diagnose", str(SAMPLES / "02-teapot.json"), "--only-new"])
    assert result.exit_code == 2
    assert "--only-new needs --store" in result.stderr


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


def copy_sample(name: str, target: Path) -> None:
    """Copy a sample run with the id ``001``."""
    run = orjson.loads((SAMPLES / f"{name}.json").read_bytes()) | {"id": "001"}
    target.write_bytes(orjson.dumps(run))


def test_runs_with_one_id_from_two_folders_are_both_stored(tmp_path: Path) -> None:
    url = tmp_path / "s.db"
    for day, sample in (("monday", "02-teapot"), ("tuesday", "04-wine-bottle")):
        (folder := tmp_path / day).mkdir()
        copy_sample(sample, folder / "001.json")
    outputs = []
    for day in ("monday", "tuesday", "tuesday"):  # the repetition adds no run
        arguments = ["diagnose", str(tmp_path / day), "--store", str(url)]
        outputs.append(CliRunner().invoke(build_app(), arguments))
    assert "another stored run" not in outputs[0].stderr
    assert "stored as FILE:ID, because another stored run has the id: 1 run\n" in outputs[1].stderr
    assert f"stored in {url}: 1 run\n" in outputs[0].stderr
    with Store.open(url) as store:
        ids = {row.id for row in store.list_runs().rows}
        assert ids == {"001", f"{tmp_path}/tuesday/001.json"[-120:] + ":001"}
        for id in ids:
            run = store.get_trajectory(id)
            assert run is not None
            for row in store.list_diagnoses(id):
                diagnosis = decode_diagnosis(JsonNode.from_value(row.data))
                assert all(one.step < len(run.steps) for one in diagnosis.hypotheses)


def test_runs_with_one_id_in_two_arguments_are_both_stored(tmp_path: Path) -> None:
    url, files = tmp_path / "s.db", []
    for day, sample in (("monday", "02-teapot"), ("tuesday", "04-wine-bottle")):
        (folder := tmp_path / day).mkdir()
        files.append(folder / "001.json")
        copy_sample(sample, files[-1])
    result = CliRunner().invoke(build_app(), ["diagnose", *map(str, files), "--store", str(url)])
    assert result.exit_code == 0, result.output
    with Store.open(url) as store:
        assert {row.id for row in store.list_runs().rows} == {"001", f"{files[1]}:001"}


def test_runs_with_one_id_in_one_folder_are_reported(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (folder := tmp_path / "runs" / name).mkdir(parents=True)
        copy_sample("02-teapot" if name == "a" else "04-wine-bottle", folder / "001.json")
    url = str(tmp_path / "s.db")
    result = CliRunner().invoke(build_app(), ["diagnose", str(tmp_path / "runs"), "--store", url])
    assert "named FILE:ID, because another run of the input has the id: 1 run\n" in result.stderr
    assert f"stored in {url}: 2 runs\n" in result.stderr
    assert f"agentguard view --store {url}" in " ".join(result.stdout.split())


def test_report_has_the_label_of_a_person(tmp_path: Path) -> None:
    url, file = str(tmp_path / "s.db"), str(SAMPLES / "04-wine-bottle.json")
    command = ["diagnose", file, "--store", url, "--json"]
    first = orjson.loads(CliRunner().invoke(build_app(), command).stdout)
    assert not any("labelled by a person" in note for note in first["notes"])
    run_id = first["trajectory_id"]
    with Store.open(url) as store:
        (row,) = store.list_diagnoses(run_id)
        label = JudgementRow(
            run_id=run_id, subject="diagnosis", subject_id=row.id, right=False, by="ann", data={"step": 4}
        )
        store.write(label).wait(10)
    for command_again in (command, ["diagnose", "--run-id", run_id, "--store", url, "--json"]):
        notes = orjson.loads(CliRunner().invoke(build_app(), command_again).stdout)["notes"]
        assert notes[0] == "labelled by a person: failed at step 4"
    with Store.open(url) as store:
        stored = [row.data["notes"] for row in store.list_diagnoses(run_id)]
        assert len(stored) == 3
        assert not any("labelled by a person" in note for notes in stored for note in notes)
