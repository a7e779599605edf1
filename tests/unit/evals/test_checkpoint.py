from __future__ import annotations

from pathlib import Path

from agentguard.evals.prediction import Prediction
from agentguard.evals.runner import EvaluationCheckpoint, build_checkpoint_name, compute_records_checksum
from tests.unit.evals.cases import record, records

ONE = Prediction(
    run="a/1", repeat=1, fold=2, steps=(3, 1), agents=("x", "ü"), confidence=0.5, probability=1.0
)


def test_checkpoint_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "j.jsonl"
    journal = EvaluationCheckpoint(path)
    journal.add(ONE)
    journal.add_fit(1, 2, 0.25)
    journal.close()
    again = EvaluationCheckpoint(path)
    assert again.predictions == {(1, 2, "a/1"): ONE}
    assert again.fit_seconds == {(1, 2): 0.25}


def test_truncated_line_is_removed_and_next_line_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = EvaluationCheckpoint(path)
    journal.add(ONE)
    journal.close()
    path.write_bytes(path.read_bytes() + b'{"run":"a/2","rep')
    torn = EvaluationCheckpoint(path)
    assert set(torn.predictions) == {(1, 2, "a/1")}
    torn.add(Prediction(run="a/3"))
    torn.close()
    assert set(EvaluationCheckpoint(path).predictions) == {(1, 2, "a/1"), (0, 0, "a/3")}


def test_foreign_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    path.write_bytes(b'{"x":1}\n[]\nnot json\n"text"\n{"run":"a","steps":[1],"agents":[],"what":2}\n')
    assert EvaluationCheckpoint(path).predictions == {}


def test_discard_deletes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = EvaluationCheckpoint(path)
    journal.add(ONE)
    journal.discard()
    assert not journal.predictions
    assert not path.exists()


def test_checkpoint_without_path_writes_nothing() -> None:
    journal = EvaluationCheckpoint(None)
    journal.add(ONE)
    journal.close()
    assert journal.predictions


def test_names_depend_on_data_and_options() -> None:
    assert build_checkpoint_name(data="a", plan={"seed": 1}) == build_checkpoint_name(
        plan={"seed": 1}, data="a"
    )
    assert build_checkpoint_name(data="a", plan={"seed": 1}) != build_checkpoint_name(
        data="a", plan={"seed": 2}
    )


def test_checksum_covers_labels_and_contents() -> None:
    assert compute_records_checksum(records()) == compute_records_checksum(records())
    assert compute_records_checksum([record("a", step=1)]) != compute_records_checksum([record("a", step=2)])
    assert compute_records_checksum([record("a", steps=4)]) != compute_records_checksum(
        [record("a", steps=5)]
    )
