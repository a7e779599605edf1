from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from agentguard.errors import EvaluationError, UnknownPlugin
from agentguard.evals.datasets.dataset import (
    Dataset,
    add_gold_answer,
    compute_checksum,
    load_dataset,
    to_dataset,
)
from agentguard.trajectory.model import GOLD_ANSWER
from tests.unit.evals.cases import record, records


def run_file(*, question: str = "Where is it?", step: str = "1", name_key: str = "name") -> str:
    """Write a synthetic run in the format of Who&When."""
    turns = [("Ada", "I pass on: Where is it?"), ("Bob", "It is here."), ("Ada", "Done: here.")]
    return json.dumps(
        {
            "is_correct": False,
            "question": question,
            "question_ID": "q1",
            "level": "1",
            "ground_truth": "there",
            "history": [{"content": text, "role": "assistant", name_key: who} for who, text in turns],
            "mistake_agent": "Bob",
            "mistake_step": step,
            "mistake_reason": "It is not here.",
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part in ("First", "Second"):
        (tmp_path / part).mkdir()
        for i in range(3):
            (tmp_path / part / f"{i}.json").write_text(run_file(question=f"Where is {part} {i}?"))
    (tmp_path / "LICENSE").write_text("MIT")
    return tmp_path


def test_folder_is_read_by_parts(folder: Path) -> None:
    data = load_dataset("who_and_when", [folder])
    assert data.name == "who_and_when"
    assert data.parts == ("First",) * 3 + ("Second",) * 3
    cases = data.build_cases()
    assert len({case.run for case in cases}) == 6
    assert {(case.step, case.agent, case.failed) for case in cases} == {(1, "Bob", True)}


def test_single_part_is_read(folder: Path) -> None:
    data = load_dataset("who_and_when", [folder / "First"])
    assert set(data.parts) == {"First"}
    assert len(data.records) == 3
    assert data.records[0].annotation.group is not None


def test_single_file_is_read(folder: Path) -> None:
    assert len(load_dataset("who_and_when", [folder / "First" / "0.json"]).records) == 1


def test_broken_records_are_separate(folder: Path) -> None:
    (folder / "First" / "3.json").write_text("{")
    (folder / "First" / "4.json").write_text(json.dumps({"history": 3}))
    data = load_dataset("who_and_when", [folder / "First"])
    assert (len(data.records), len(data.broken)) == (3, 2)
    assert all("json" in str(error) for error in data.broken)


def test_empty_input_is_rejected(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(EvaluationError, match="no file or folder"):
        load_dataset("who_and_when", [tmp_path / "absent"])
    with pytest.raises(UnknownPlugin):
        load_dataset("who_and_where", [folder])
    only_bad = tmp_path / "bad"
    only_bad.mkdir()
    (only_bad / "0.json").write_text("{")
    with pytest.raises(EvaluationError, match="1 are broken"):
        load_dataset("who_and_when", [only_bad])


def test_checksum_covers_names_and_bytes(folder: Path) -> None:
    before = compute_checksum([folder])
    assert before == load_dataset("who_and_when", [folder]).checksum
    (folder / "First" / "0.json").rename(folder / "First" / "9.json")
    renamed = compute_checksum([folder])
    (folder / "First" / "9.json").write_text("{}")
    assert len({before, renamed, compute_checksum([folder])}) == 3
    one = folder / "Second" / "0.json"
    size = one.stat().st_size
    by_hand = hashlib.sha256(b"0.json\0" + str(size).encode() + b"\0" + one.read_bytes()).hexdigest()
    assert compute_checksum([one]) == by_hand


def test_limit_keeps_parts_aligned() -> None:
    data = Dataset(name="x", records=tuple(records(6)), parts=("a",) * 2 + ("b",) * 4)
    assert data.take(3).parts == ("a", "a", "b")
    assert data.take(None) is data


def test_plain_records_are_named_by_their_format() -> None:
    assert to_dataset(records(2)).name == "test"


def test_answer_is_passed_only_on_request() -> None:
    plain = record("a", answer="42")
    assert GOLD_ANSWER not in plain.trajectory.extra
    assert add_gold_answer(plain).trajectory.extra[GOLD_ANSWER] == "42"
    assert add_gold_answer(record("b")) == record("b")
