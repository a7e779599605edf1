from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentguard.errors import EvaluationError, FormatError
from agentguard.evals.evaluate import EvaluationPlan, compare
from agentguard.evals.report import render_report
from agentguard.evals.result_file import (
    build_file_name,
    find_result_files,
    is_result_file,
    read_result_file,
    write_result_file,
)
from tests.unit.evals.cases import Remembers, Says, records

PLAN = EvaluationPlan(cv="question", folds=3, repeats=2)


@pytest.fixture(scope="module")
def results() -> Any:
    return compare(records(), [Says(1, 2), Remembers()], plan=PLAN)


@pytest.fixture
def path(tmp_path: Path, results: Any) -> Path:
    return write_result_file(tmp_path / "deep" / "one.json", results, plan=PLAN)


def without_time(text: str) -> str:
    """Return a report without the ids of its plots, which increase within the process."""
    import re

    return re.sub(r"plot\d+", "plot", text)


def test_result_file_round_trips(path: Path, results: Any) -> None:
    sheet = read_result_file(path)
    assert sheet.plan == PLAN
    assert [one.method for one in sheet.results] == ["says", "remembers"]
    for read, made in zip(sheet.results, results, strict=True):
        assert read.as_dict() == made.as_dict()
        assert read.cases == made.cases
        assert read.predictions == made.predictions
        assert read.baselines.keys() == made.baselines.keys()
    assert without_time(render_report(sheet.results, plan=sheet.plan)) == without_time(
        render_report(results, plan=PLAN)
    )


def test_methods_and_baselines_are_found_by_name(path: Path) -> None:
    sheet = read_result_file(path)
    assert sheet.find_method("remembers") is sheet.results[1]
    baseline = sheet.find_method("last_step")
    assert baseline is not None
    assert baseline.method == "last_step"
    assert sheet.find_method("nobody") is None


def test_evaluated_baseline_is_both_method_and_baseline(tmp_path: Path) -> None:
    from agentguard.evals.methods import resolve_method

    results = compare(records(), [resolve_method("two_line")], plan=PLAN)
    sheet = read_result_file(write_result_file(tmp_path / "one.json", results, plan=PLAN))
    assert [one.method for one in sheet.results] == ["two_line"]
    assert "two_line" in sheet.results[0].baselines


def test_same_file_has_the_same_id(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.json"
    copy.write_bytes(path.read_bytes())
    assert read_result_file(path).id == read_result_file(copy).id
    assert len(read_result_file(path).id) == 16


def test_questions_are_stored_as_hashes(path: Path) -> None:
    text = path.read_text()
    assert "uestion" not in text.replace('"cv":"question"', "")
    groups = [case.group for case in read_result_file(path).results[0].cases]
    assert groups[0] == groups[1] != groups[2]


def test_names_sort_by_time_and_are_unique(results: Any) -> None:
    one, other = build_file_name(results), build_file_name(results)
    assert one != other
    assert one.endswith(".json")
    assert "/" not in one


def test_result_files_are_found_among_other_files(path: Path, tmp_path: Path) -> None:
    (path.parent / "run.json").write_text('{"messages": []}')
    (path.parent / "empty.json").write_text("")
    assert is_result_file(path)
    assert not is_result_file(tmp_path / "absent.json")
    assert list(find_result_files([path.parent, path, path.parent / "run.json"])) == [path, path]


def test_uncreatable_folder_is_named(results: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EvaluationError, match="cannot be written"):
        write_result_file(tmp_path / "file" / "one.json", results, plan=PLAN)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(format="other"), "--output writes one"),
        (lambda d: d.update(version=2), "version"),
        (lambda d: d.update(methods=[]), "has no result"),
        (lambda d: d["methods"][0].update(setting="magic"), "setting"),
        (lambda d: d["methods"][0]["predictions"][0].update(run="x"), "not one of the cases"),
        (lambda d: d["methods"][0]["predictions"][0].update(confidence=7), "confidence"),
        (lambda d: d["methods"][0]["predictions"][0].update(steps=["1", 2]), "whole numbers"),
        (lambda d: d["methods"][0]["predictions"][0].update(agents=[]), "steps"),
        (lambda d: d["cases"][0].update(codes=[1]), "expected texts"),
        (lambda d: d.update(made_at="now"), "made_at"),
    ],
)
def test_error_names_the_location(path: Path, change: Any, words: str) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(FormatError) as error:
        read_result_file(path)
    assert words in str(error.value)
    assert str(path) in str(error.value)


def test_invalid_json_is_an_error(path: Path) -> None:
    path.write_text("{")
    with pytest.raises(FormatError, match="not JSON"):
        read_result_file(path)
