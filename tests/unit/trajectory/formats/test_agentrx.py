from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from agentguard.errors import FormatError
from agentguard.taxonomy.catalog import TaxonomyCatalog
from agentguard.trajectory.formats.agentrx import FORMAT, LABELS_FILE, RUNS_FILE, parse_category
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import read
from agentguard.trajectory.model import Record
from tests.unit.trajectory.formats.samples import SAMPLES, parse, records, sample

FOLDER = SAMPLES / "agentrx.folder"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "agentrx"))


def test_folder_joins_runs_and_ground_truth() -> None:
    labelled, unlabelled = records(FOLDER)
    assert labelled.trajectory.format == "agentrx"
    cause = labelled.annotation.root_cause
    assert cause is not None
    # Message 5, counted from 1, is the assistant's second turn; message 6 is the tool's answer to it.
    assert (cause.step, cause.agent, cause.codes) == (
        3,
        "assistant",
        ("agentrx:instruction_adherence_failure",),
    )
    assert cause.reason == "All else follows from it."
    step = labelled.trajectory.steps[3]
    assert (step.agent, step.source_index, step.tool_calls[0].name) == ("assistant", 4, "refund")
    assert [one.step for one in labelled.annotation.failures] == [3, 3]
    assert (unlabelled.annotation.failed, unlabelled.annotation.root_cause) == (True, None)


def test_both_files_may_be_in_subfolders(folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "b" / "c").mkdir(parents=True)
    (folder / RUNS_FILE).rename(folder / "a" / RUNS_FILE)
    (folder / LABELS_FILE).rename(folder / "b" / "c" / LABELS_FILE)
    assert records(folder) == records(FOLDER)


def test_other_folders_are_not_claimed(folder: Path) -> None:
    (folder / LABELS_FILE).unlink()
    assert FORMAT.parse_folder(folder) is None


def test_run_excludes_the_annotation() -> None:
    run = str(records(FOLDER)[0].trajectory)
    for word in ("reward", "gold", "failure", "instruction", "You want a refund"):
        assert word not in run


def test_labels_without_run_and_broken_entries_are_reported(folder: Path) -> None:
    labels = json.loads((folder / LABELS_FILE).read_text())
    (folder / LABELS_FILE).write_text(
        json.dumps([*labels, {**labels[0], "trajectory_id": "77"}, {"failures": []}])
    )
    runs = json.loads((folder / RUNS_FILE).read_text())
    (folder / RUNS_FILE).write_text(json.dumps([{"task_id": 1, "traj": 5}, *runs]))
    found = list(read(folder))
    broken = [one.error for one in found if isinstance(one, UnreadableRecord)]
    assert [(Path(str(one.file)).name, one.record, one.field) for one in broken] == [
        (LABELS_FILE, 2, "trajectory_id"),
        (RUNS_FILE, 0, "traj"),
        (LABELS_FILE, None, "trajectory_id"),
    ]
    assert len([one for one in found if isinstance(one, Record)]) == 2


def test_step_beyond_the_run_is_kept() -> None:
    value = sample("agentrx.json")
    value["failures"][0]["step_number"] = 9
    record = parse("agentrx", value)
    assert len(record.trajectory.steps) == 5
    assert record.annotation.root_cause is not None
    assert record.annotation.root_cause.step == 6


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Instruction Adherence Failure", "instruction_adherence_failure"),
        ("Instruction/Plan Adherence Failure", "instruction_adherence_failure"),
        ("Intent-Plan Misalignment", "intent_plan_misalignment"),
        ("intent plan misalignment ", "intent_plan_misalignment"),
        ("Misinterpretation of Tool Output / Handoff", "misinterpretation_of_tool_output"),
        ("Guardrails Triggered", "guardrails_triggered"),
        ("Intent Not Supported", "intent_not_supported"),
        ("Underspecified User Intent", "underspecified_user_intent"),
        ("System failure", "system_failure"),
        ("Invalid Invocation", "invalid_invocation"),
        ("Invention of New Information", "invention_of_new_information"),
        ("Inconclusive", None),
        ("", None),
    ],
)
def test_categories_are_normalised(text: str, code: str | None) -> None:
    assert parse_category(text) == (code and f"agentrx:{code}")
    if code:
        assert TaxonomyCatalog.load().get_code(f"agentrx:{code}")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"root_cause": {"failure_id": 8}}, "root_cause.failure_id"),
        ({"failures": [{"failure_id": 7, "step_number": 0}]}, "failures[0].step_number"),
        ({"failures": [{"failure_id": 7, "step_number": "last"}]}, "failures[0].step_number"),
        ({"failures": {}}, "failures"),
        ({"traj": [1]}, "traj[0]"),
    ],
)
def test_error_names_the_location(change: dict[str, Any], field: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse("agentrx", {**sample("agentrx.json"), **change})
    assert caught.value.field == field
