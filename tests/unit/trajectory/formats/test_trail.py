from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from agentguard.errors import FormatError
from agentguard.taxonomy.catalog import TaxonomyCatalog
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import read
from agentguard.trajectory.formats.trail import CATEGORIES, parse_category
from agentguard.trajectory.model import Record
from tests.unit.trajectory.formats.samples import SAMPLES, parse, records, sample


def test_errors_are_failures_at_the_steps_of_their_spans() -> None:
    (record,) = records(SAMPLES / "trail.json")
    run, annotation = record.trajectory, record.annotation
    assert [(step.source, step.content[:4]) for step in run.steps] == [
        ("user", "New "),
        ("agent", "Look"),
        ("agent", "The "),
    ]
    assert run.task == "Which spice is missing?"
    assert run.steps[1].observations[0].content == "salt, pepper"
    told = [(one.step, one.codes, one.agent) for one in annotation.failures]
    assert told == [
        (2, ("trail:tool_related",), "Cook.run"),
        (2, ("trail:goal_deviation",), "Cook.run"),  # "Step 2" is not a step: the first step inside it
        (None, (), None),
    ]
    assert annotation.failed is None
    assert annotation.root_cause is None
    assert annotation.extra["scores"][0]["overall"] == 1.5


def test_gold_answer_in_logs_is_excluded_from_the_run() -> None:
    (record,) = records(SAMPLES / "trail.json")
    assert "true_answer" in str(record.annotation)
    assert "true_answer" not in str(record.trajectory)
    assert "s0" not in [span["span_id"] for span in record.trajectory.extra["spans"]]


def test_times_are_epoch_seconds() -> None:
    step = records(SAMPLES / "trail.json")[0].trajectory.steps[1]
    assert (step.started_at, step.ended_at) == (1767607202.0, 1767607203.0)


def test_folder_joins_traces_and_annotations() -> None:
    assert records(SAMPLES / "trail.folder") == records(SAMPLES / "trail.json")


def test_broken_file_of_a_folder_does_not_hide_others(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(SAMPLES / "trail.folder", tmp_path / "trail"))
    (folder / "Kitchen" / "kitchen-0.json").write_text('{"spans": 3}')
    broken, record = read(folder)
    assert isinstance(broken, UnreadableRecord)
    assert broken.error.file == str(folder / "Kitchen" / "kitchen-0.json")
    assert broken.error.field == "trace.spans"
    assert isinstance(record, Record)


def test_trace_and_labels_may_be_text() -> None:
    value = {key: json.dumps(part) for key, part in sample("trail.json").items()}
    assert parse("trail", value) == parse("trail", sample("trail.json"))


def test_trace_alone_has_no_failures() -> None:
    assert parse("trail", sample("trail.json")["trace"]).annotation.failures == ()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Language-only", "trail:language_only"),
        ("Instruction Non-Compliance", "trail:instruction_non_compliance"),
        (" Formatting Error ", "trail:formatting_errors"),
        ("Tool Selection", "trail:tool_selection_errors"),
        ("API Issues", None),
        ("", None),
    ],
)
def test_categories_are_normalised(text: str, code: str | None) -> None:
    assert parse_category(text) == code


def test_categories_match_the_taxonomy() -> None:
    assert {code.id for code in TaxonomyCatalog.load().get_taxonomy("trail").codes} == CATEGORIES


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"timestamp": "yesterday"}, "trace.spans[0].timestamp"),
        ({"duration": "1 second"}, "trace.spans[0].duration"),
        ({"span_attributes": []}, "trace.spans[0].span_attributes"),
        ({"child_spans": [1]}, "trace.spans[0].child_spans[0]"),
    ],
)
def test_error_names_the_location(change: dict[str, Any], field: str) -> None:
    value = sample("trail.json")
    value["trace"]["spans"][0] |= change
    with pytest.raises(FormatError) as caught:
        parse("trail", value)
    assert caught.value.field == field


def test_deeply_nested_spans_are_read() -> None:
    span: dict[str, Any] = {"span_id": "end", "span_attributes": {"openinference.span.kind": "LLM"}}
    for i in range(150):
        span = {"span_id": f"s{i}", "child_spans": [span]}
    assert len(parse("trail", {"trace_id": "t", "spans": [span]}).trajectory.steps) == 1
