from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.judge.embedded.label_counts import MIN_OUTCOMES, MIN_RUNS_PER_OUTCOME, MINIMUM_LABELS
from agentguard.judge.embedded.model_card import CARD_FILE, MODEL_FILE
from agentguard.trajectory.formats.reader import load_records


def chat(number: int) -> dict[str, object]:
    """Return a synthetic run in the format of Who&When."""
    question = f"How many boats lie in harbour {number}?"
    said = [
        ("Lead_Expert", f"You are given a task. {question}"),
        ("Count_Expert", f"Let us assume that there are {number + 40} boats."),
        ("Shell", "exitcode: 0\n12"),
        ("Check_Expert", f"There are {number + 40} boats. TERMINATE"),
    ]
    return {
        "question": question,
        "is_correct": False,
        "ground_truth": "7",
        "mistake_agent": "Count_Expert",
        "mistake_step": "1",
        "history": [{"name": name, "role": "assistant", "content": text} for name, text in said],
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data, out = tmp_path_factory.mktemp("boats"), tmp_path_factory.mktemp("model")
    for number in range(24):
        (data / f"{number}.json").write_bytes(orjson.dumps(chat(number)))
    (data / "LICENSE").write_text("CC0 1.0\n")
    assert len(load_records(data)) == 24
    result = CliRunner().invoke(
        build_app(), ["judge", "train", str(data), "--output", str(out), "--repeats", "1", "--json"]
    )
    assert result.exit_code == 0, result.output
    return out


def test_training_writes_a_model_and_its_card(trained: Path) -> None:
    card = orjson.loads((trained / CARD_FILE).read_bytes())
    assert (trained / MODEL_FILE).stat().st_size == card["bytes"]
    assert card["data"][0]["runs"] == 24
    assert card["data"][0]["licence"] == "CC0 1.0"
    assert card["scores"][0]["setting"] == "cross_validated"
    assert card["scores"][0]["step_accuracy"] > 0.9
    assert len(card["scores"][0]["wilson95"]["step"]) == 2
    assert card["limits"]
    assert str(trained.parent) not in (trained / CARD_FILE).read_text()


def write_outcomes(folder: Path, failed: int, passed: int) -> None:
    for number in range(failed + passed):
        data = chat(number) | {"is_correct": number >= failed}
        if number >= failed:
            del data["mistake_agent"], data["mistake_step"]
        (folder / f"{number}.json").write_bytes(orjson.dumps(data))


def test_training_on_too_few_labels_is_an_error_and_writes_no_model(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "model"
    data.mkdir()
    write_outcomes(data, 4, 2)
    result = CliRunner().invoke(build_app(), ["judge", "train", str(data), "--output", str(out)])
    assert result.exit_code == 2
    assert "4 failed, 2 passed, 4 with a root cause" in result.output
    assert MINIMUM_LABELS in result.output
    assert not out.exists()


def test_training_at_the_minimum_of_outcomes_reports_the_untrained_ranking(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "model"
    data.mkdir()
    write_outcomes(data, MIN_RUNS_PER_OUTCOME, MIN_OUTCOMES - MIN_RUNS_PER_OUTCOME)
    command = ["judge", "train", str(data), "--output", str(out), "--no-scores"]
    result = CliRunner().invoke(build_app(), command)
    assert result.exit_code == 0, result.output
    assert "not trained: ranking of steps of" in result.output
    (agent,) = orjson.loads((out / CARD_FILE).read_bytes())["agents"]
    assert (agent["failed"], agent["passed"], agent["root_causes"]) == (5, 15, 5)
    assert (agent["ranks_steps"], agent["predicts_outcomes"]) == (False, True)
    assert "too few labels" in CliRunner().invoke(build_app(), ["judge", "info", "--model", str(out)]).output


def test_minimum_of_labels_is_stated_alike() -> None:
    page = " ".join(Path("docs/embedded-judge.md").read_text(encoding="utf-8").split())
    assert MINIMUM_LABELS in page
    help_text = " ".join(CliRunner().invoke(build_app(), ["judge", "train", "--help"]).output.split())
    assert MINIMUM_LABELS in help_text


def test_card_is_shown_as_text_and_json(trained: Path) -> None:
    shown = CliRunner().invoke(build_app(), ["judge", "info", "--model", str(trained)])
    assert shown.exit_code == 0
    assert "embedded judge" in shown.output
    assert "sha256" in shown.output
    given = CliRunner().invoke(build_app(), ["judge", "info", "--model", str(trained), "--json"])
    assert orjson.loads(given.output)["data"][0]["root_causes"] == 24


def test_check_accepts_written_model_and_rejects_changed_one(trained: Path, tmp_path: Path) -> None:
    sound = CliRunner().invoke(build_app(), ["judge", "check", "--model", str(trained), "--json"])
    assert sound.exit_code == 0
    assert orjson.loads(sound.output)["answers"] is True
    for name in (CARD_FILE, MODEL_FILE):
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    (tmp_path / MODEL_FILE).write_bytes(b"changed")
    changed = CliRunner().invoke(build_app(), ["judge", "check", "--model", str(tmp_path)])
    assert changed.exit_code == 2
    assert "does not match its card" in changed.output


def test_missing_model_is_an_error(tmp_path: Path) -> None:
    missing = CliRunner().invoke(build_app(), ["judge", "info", "--model", str(tmp_path)])
    assert missing.exit_code == 2
    assert "agentguard judge train" in missing.output


def test_shipped_model_passes_its_check() -> None:
    assert CliRunner().invoke(build_app(), ["judge", "check"]).exit_code == 0
