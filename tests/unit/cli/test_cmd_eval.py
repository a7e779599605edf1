from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agentguard.cli.app import build_app
from agentguard.evals.result import Setting
from agentguard.evals.result_file import is_result_file, read_result_file
from agentguard.judge.embedded.model_card import load_card
from agentguard.judge.embedded.run_digests import encode_digests
from agentguard.localize.baselines.first_worker_turn import FirstWorkerTurnLocalizer
from agentguard.trajectory.formats.reader import load_records
from tests.unit.evals.datasets.test_dataset import run_file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    runs.mkdir()
    for i in range(10):
        (runs / f"{i}.json").write_text(run_file(question=f"Where is it {i}?", step="1" if i % 3 else "2"))
    return runs


def call(*arguments: object) -> Result:
    return CliRunner().invoke(build_app(), ["eval", *map(str, arguments)])


def test_json_output_is_one_documented_object(folder: Path) -> None:
    result = call("who_and_when", folder, "--method", "two_line", "--cv", "question", "--folds", 2, "--json")
    assert result.exit_code == 0, result.output
    given = json.loads(result.stdout)
    assert given["dataset"] == "who_and_when"
    assert given["method"] == "two_line"
    assert given["n"] == 10
    for name in ("agent_accuracy", "step_accuracy", "step_accuracy_published"):
        assert 0 <= given[name] <= 1
    assert set(given["within"]) == {"1", "3", "5"}
    assert set(given["top"]) == {"3", "5"}
    assert set(given["wilson95"]) == {"step", "agent"}
    assert {"constant", "label_copy", "two_line", "index_prior", "first_step", "last_step"} <= set(
        given["baselines"]
    )
    assert given["seconds"] >= 0
    assert {"auroc", "average_precision", "brier"} <= set(given)
    assert given["plan"]["folds"] == 2


@pytest.mark.process
def test_batch_scores_equal_those_in_memory(folder: Path) -> None:
    (folder / "bad.json").write_text("{")
    options = (
        "who_and_when",
        folder,
        "--method",
        "two_line",
        "--method",
        "last_error",
        "--repeats",
        1,
        "--json",
    )
    plain, batch = call(*options), call(*options, "--batch-output", "out", "--jobs", 2)
    assert (plain.exit_code, batch.exit_code) == (1, 1), batch.output
    assert "bad.json" in batch.stderr
    for one, other in zip(
        json.loads(plain.stdout)["methods"], json.loads(batch.stdout)["methods"], strict=True
    ):
        for name in (
            "method",
            "setting",
            "n",
            "broken",
            "step_accuracy",
            "agent_accuracy",
            "wilson95",
            "within",
        ):
            assert one[name] == other[name]


def test_several_methods_are_evaluated(folder: Path) -> None:
    result = call(
        "who_and_when", folder, "--method", "two_line", "--method", "last_error", "--json", "--repeats", 1
    )
    given = json.loads(result.stdout)
    assert given["method"] == "two_line"
    assert [m["method"] for m in given["methods"]] == ["two_line", "last_error"]


def test_table_shows_methods_and_baselines(folder: Path) -> None:
    result = call("who_and_when", folder, "--method", "two_line", "--repeats", 1)
    assert "root causes of 10 runs" in result.stdout
    assert "index_prior" in result.stdout


def test_failing_methods_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: FirstWorkerTurnLocalizer, trajectory: object, findings: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(FirstWorkerTurnLocalizer, "locate", fails)
    result = call("who_and_when", folder, "--method", "last_error", "--repeats", 1)
    assert "two_line failed on 10 of 10 predictions, mostly ZeroDivisionError" in " ".join(
        result.stdout.split()
    )
    assert result.exit_code == 0
    assert call("who_and_when", folder, "--method", "two_line", "--repeats", 1).exit_code == 1


def test_report_is_written(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "out" / "report.html"
    result = call("who_and_when", folder, "--method", "two_line", "--report", path, "--repeats", 1)
    assert result.exit_code == 0
    assert path.read_text().startswith("<!doctype html>")


def test_transfer_uses_another_set(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for i in range(4):
        (other / f"{i}.json").write_text(run_file(question=f"Who was it {i}?", step="2"))
    result = call("who_and_when", folder, "--method", "constant", "--train", "who_and_when", other, "--json")
    given = json.loads(result.stdout)
    assert given["setting"] == "transfer"
    assert given["step_accuracy"] == pytest.approx(0.4)


def test_method_options_are_passed(folder: Path) -> None:
    result = call(
        "who_and_when", folder, "--method", "constant", "--option", "position=last", "--json", "--repeats", 1
    )
    given = json.loads(result.stdout)
    assert given["method"] == "constant(position=last)"
    assert given["step_accuracy"] == pytest.approx(0.4)


def test_limit_restricts_runs(folder: Path) -> None:
    result = call("who_and_when", folder, "--method", "two_line", "--limit", 6, "--repeats", 1, "--json")
    assert json.loads(result.stdout)["n"] == 6


def test_broken_record_is_reported_and_the_rest_is_scored(folder: Path) -> None:
    (folder / "bad.json").write_text("{")
    result = call("who_and_when", folder, "--method", "two_line", "--repeats", 1, "--json")
    assert result.exit_code == 1
    assert "bad.json" in result.stderr
    assert json.loads(result.stdout)["broken"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--cv", "file"), "--cv question"),
        (("--method", "oracle"), "no localizer named 'oracle'"),
        (("--method", "label_copy", "--option", "k"), "NAME=VALUE"),
        (("--method", "two_line", "--method", "constant", "--option", "k=1"), "one --method"),
        (("--method", "constant", "--folds", "11"), "11 folds"),
        (("--method", "constant", "--batch-output", "out"), "a batch job trains nothing"),
        (
            ("--method", "two_line", "--batch-output", "out", "--cv", "question"),
            "--batch-output trains nothing",
        ),
    ],
)
def test_invalid_arguments_give_one_clear_line(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    result = call("who_and_when", folder, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_interrupted_evaluation_resumes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    locate = FirstWorkerTurnLocalizer.locate

    def interrupted(self: FirstWorkerTurnLocalizer, trajectory: object, findings: object) -> object:
        if len(asked) == 4:
            raise KeyboardInterrupt
        asked.append(trajectory.id)  # type: ignore[attr-defined]
        return locate(self, trajectory, findings)  # type: ignore[arg-type]

    command = (
        "who_and_when",
        folder,
        "--method",
        "two_line",
        "--repeats",
        1,
        "--json",
        "--checkpoint",
        tmp_path / "j",
    )
    monkeypatch.setattr(FirstWorkerTurnLocalizer, "locate", interrupted)
    first = call(*command)
    assert first.exit_code == 130
    assert "the same command resumes" in first.stderr
    monkeypatch.setattr(
        FirstWorkerTurnLocalizer, "locate", lambda s, t, f: asked.append(t.id) or locate(s, t, f)
    )
    again = json.loads(call(*command).stdout)
    assert len(asked) == 10
    assert again["n"] == 10
    monkeypatch.setattr(FirstWorkerTurnLocalizer, "locate", locate)
    whole = json.loads(call(*command).stdout)
    assert again["step_accuracy"] == whole["step_accuracy"]
    assert not list((tmp_path / "j").iterdir())


def test_result_is_stored_for_the_viewer(folder: Path, tmp_path: Path) -> None:
    command = ("who_and_when", folder, "--method", "two_line", "--repeats", 1)
    result = call(*command)
    kept = list((tmp_path / ".agentguard" / "evals").iterdir())
    assert len(kept) == 1
    assert str(kept[0].relative_to(tmp_path)) in result.stderr.replace("\n", "")
    assert read_result_file(kept[0]).results[0].method == "two_line"
    call(*command, "--no-save")
    assert len(list((tmp_path / ".agentguard" / "evals").iterdir())) == 1
    call(*command, "--output", tmp_path / "named.json")
    assert is_result_file(tmp_path / "named.json")


def test_leave_one_system_out_prints_a_line_for_each_path(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "others"
    other.mkdir()
    for i in range(8):
        (other / f"{i}.json").write_text(run_file(question=f"Who is it {i}?", step="1"))
    result = call("auto", folder, other, "--leave-one-system-out", "--json")
    assert result.exit_code == 0, result.output
    sources = json.loads(result.stdout)["sources"]
    assert [source["name"] for source in sources] == ["runs", "others"]
    assert sources[0]["steps"]["accuracy"]["n"] == 10
    table = call("auto", folder, other, "--leave-one-system-out")
    assert "Root-cause step" in table.stdout


def test_leave_one_system_out_with_one_path_is_refused(folder: Path) -> None:
    result = call("auto", folder, "--leave-one-system-out")
    assert result.exit_code != 0
    assert "at least two paths" in result.stderr


@pytest.fixture
def trained_on_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of runs, some of which the card of the shipped model lists as training data."""
    runs = [record.trajectory for record in load_records(folder)]
    card = load_card() | {"data": [{"name": "own", "run_digests": encode_digests(runs[:4])}]}
    monkeypatch.setattr("agentguard.judge.embedded.model_card.load_card", lambda folder=None: card)
    return folder


def test_shipped_model_on_its_training_data_is_refused(trained_on_folder: Path) -> None:
    result = call("who_and_when", trained_on_folder, "--method", "embedded", "--no-save")
    assert result.exit_code != 0
    assert "trained on 4 of the 10 runs" in result.stderr
    assert "--allow-training-data" in result.stderr


def test_copied_training_data_under_other_names_is_refused(trained_on_folder: Path, tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    for file in trained_on_folder.glob("*.json"):
        (copies / f"copy-{file.name}").write_bytes(file.read_bytes())
    result = call("who_and_when", copies, "--method", "embedded", "--no-save")
    assert "trained on 4 of the 10 runs" in result.stderr


def test_allowed_training_data_marks_the_result_everywhere(trained_on_folder: Path, tmp_path: Path) -> None:
    saved, report = tmp_path / "result.json", tmp_path / "report.html"
    arguments = ("who_and_when", trained_on_folder, "--method", "embedded", "--allow-training-data")
    result = call(*arguments, "--output", saved, "--report", report)
    assert result.exit_code == 0, result.output
    assert "TRAINING DATA" in result.stdout
    assert "scored on its training data" in report.read_text()
    assert read_result_file(saved).results[0].setting is Setting.TRAINING_DATA


def test_method_without_model_ignores_training_data(trained_on_folder: Path) -> None:
    result = call("who_and_when", trained_on_folder, "--method", "two_line", "--no-save", "--json")
    assert result.exit_code == 0, result.output


def test_cross_validation_on_training_data_is_accepted(trained_on_folder: Path) -> None:
    arguments = ("--method", "embedded", "--cv", "question", "--folds", "2", "--repeats", "1", "--no-save")
    result = call("who_and_when", trained_on_folder, *arguments, "--json")
    assert json.loads(result.stdout)["setting"] == "cross_validated"
