from __future__ import annotations

from pathlib import Path

from agentguard.evals.journal import Journal, journal_name, records_checksum
from agentguard.evals.predict import Prediction
from tests.unit.evals.cases import record, records

ONE = Prediction(
    run="a/1", repeat=1, fold=2, steps=(3, 1), agents=("x", "ü"), confidence=0.5, probability=1.0
)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "j.jsonl"
    journal = Journal(path)
    journal.add(ONE)
    journal.add_fit(1, 2, 0.25)
    journal.close()
    again = Journal(path)
    assert again.held == {(1, 2, "a/1"): ONE}
    assert again.fitted == {(1, 2): 0.25}


def test_a_torn_line_is_cut_off_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path)
    journal.add(ONE)
    journal.close()
    path.write_bytes(path.read_bytes() + b'{"run":"a/2","rep')
    torn = Journal(path)
    assert set(torn.held) == {(1, 2, "a/1")}
    torn.add(Prediction(run="a/3"))
    torn.close()
    assert set(Journal(path).held) == {(1, 2, "a/1"), (0, 0, "a/3")}


def test_lines_of_others_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    path.write_bytes(b'{"x":1}\n[]\nnot json\n"text"\n{"run":"a","steps":[1],"agents":[],"what":2}\n')
    assert Journal(path).held == {}


def test_discard_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path)
    journal.add(ONE)
    journal.discard()
    assert not journal.held
    assert not path.exists()


def test_without_a_path_nothing_is_written() -> None:
    journal = Journal(None)
    journal.add(ONE)
    journal.close()
    assert journal.held


def test_names_tell_data_and_options_apart() -> None:
    assert journal_name(data="a", plan={"seed": 1}) == journal_name(plan={"seed": 1}, data="a")
    assert journal_name(data="a", plan={"seed": 1}) != journal_name(data="a", plan={"seed": 2})


def test_checksum_sees_labels_and_contents() -> None:
    assert records_checksum(records()) == records_checksum(records())
    assert records_checksum([record("a", step=1)]) != records_checksum([record("a", step=2)])
    assert records_checksum([record("a", steps=4)]) != records_checksum([record("a", steps=5)])
