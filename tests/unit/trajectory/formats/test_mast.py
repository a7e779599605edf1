from __future__ import annotations

import json
from typing import Any

import pytest

from agentguard.errors import FormatError
from agentguard.taxonomy.catalog import TaxonomyCatalog
from agentguard.trajectory.formats.mast import FAILURE_MODES, parse_mode, split_speakers
from agentguard.trajectory.model import Source
from tests.unit.trajectory.formats.samples import SAMPLES, parse, records, sample


def test_text_is_split_by_speakers() -> None:
    (record,) = records(SAMPLES / "mast.json")
    steps = record.trajectory.steps
    assert [(s.source, s.agent, s.content) for s in steps] == [
        (Source.SYSTEM, "system", "Loading puzzle 4"),
        (Source.AGENT, "Writer", "I write sort(list)."),
        (Source.AGENT, "Checker", "Looks right to me."),
        (Source.AGENT, "Writer", "I write sort(list)."),
    ]
    assert record.trajectory.id == "PairCoder/4"


def test_step_numbers_count_only_if_all_sources_agree() -> None:
    annotation = parse("mast", sample("mast.json")).annotation
    assert annotation.modes == {"step_repetition": True, "conversation_reset": False}
    assert annotation.extra["ambiguous_modes"] == {"3.2": True, "3.3": False}
    assert annotation.failed is None


def test_modes_are_matched_by_name_and_majority() -> None:
    annotation = records(SAMPLES / "mast.people.json")[0].annotation
    assert annotation.modes == {
        "no_or_incomplete_verification": True,
        "incorrect_verification": False,
        "step_repetition": False,
    }


@pytest.mark.parametrize(
    ("label", "mode"),
    [
        ("3.2 Incorrect Verification", "incorrect_verification"),
        ("3.3 Incorrect Verification", "incorrect_verification"),
        ("3.2 No or Incomplete Verification", "no_or_incomplete_verification"),
        ("3.3: No or incomplete verification", "no_or_incomplete_verification"),
        ("2.5 Ignored Other Agent's Input", "ignored_other_agents_input"),
        ("Ignored other agents input", "ignored_other_agents_input"),
        ("2.6 Action-Reasoning Mismatch", "reasoning_action_mismatch"),
        ("unaware_of_termination_conditions", "unaware_of_termination"),
        ("FM-1.3 Step repetition", "step_repetition"),
        ("1.3", "step_repetition"),
        ("3.2", None),
        ("3.3", None),
        ("1.3 Something new", None),
        ("", None),
    ],
)
def test_labels_are_read(label: str, mode: str | None) -> None:
    assert parse_mode(label) == mode


def test_modes_match_the_taxonomy() -> None:
    assert {code.id for code in TaxonomyCatalog.load().get_taxonomy("mast").codes} == set(FAILURE_MODES)


@pytest.mark.parametrize(
    ("value", "present"), [(1, True), ("YES", True), (0.0, False), ("no", False), (None, None), ("", None)]
)
def test_yes_and_no_are_parsed(value: Any, present: bool | None) -> None:
    modes = parse("mast", {"trace": "x", "mast_annotation": {"1.3": value}}).annotation.modes
    assert modes.get("step_repetition") is present


@pytest.mark.parametrize("value", ["perhaps", 2, [], {}])
def test_other_answers_are_rejected(value: Any) -> None:
    with pytest.raises(FormatError) as caught:
        parse("mast", {"trace": "x", "mast_annotation": {"1.3": value}})
    assert caught.value.field == "mast_annotation.1.3"


def test_outcome_answer_and_unknown_fields_are_read() -> None:
    value = {"trace": "x", "success": False, "ground_truth": "42", "judge_says": "bad", "task": "Add."}
    record = parse("mast", value)
    assert record.annotation.failed is True
    assert record.annotation.answer == "42"
    assert record.annotation.extra == {"judge_says": "bad"}
    assert record.trajectory.extra == {}


@pytest.mark.parametrize(
    ("text", "speakers"),
    [
        ("Coder (to Tester):\nhere\nTester (to Coder):\nfails", ["Coder", "Tester"]),
        ("[09:00] FROM: Lead TO: {'all'}\nplan\n[09:01] FROM: Dev TO: Lead\nok", ["Lead", "Dev"]),
        ("log - INFO - Planner's Response: go\nlog - INFO - Editor's Response: gone", ["Planner", "Editor"]),
        ("Ann: hi\nBen: hello\nthere\nAnn: bye", ["Ann", "Ben", "Ann"]),
    ],
)
def test_speakers_are_recognised(text: str, speakers: list[str]) -> None:
    turns = split_speakers(text)
    assert turns is not None
    assert [speaker for speaker, _ in turns] == speakers


@pytest.mark.parametrize("text", ["no speakers", "Note: this\nError: that", "Ann: hi\nAnn: still me"])
def test_text_without_speakers_has_none(text: str) -> None:
    assert split_speakers(text) is None


def test_paragraphs_are_steps_without_speakers() -> None:
    steps = parse("mast", {"mas_name": "Team", "trace": "one\nmore\n\n\ntwo\n \nthree"}).trajectory.steps
    assert [(s.agent, s.content) for s in steps] == [
        ("Team", "one\nmore"),
        ("Team", "two"),
        ("Team", "three"),
    ]


def test_hostile_text_takes_linear_time() -> None:
    for unit in ("-" * 50 + " ", "A" * 60, "a - INFO - ", "**<->", "\n \n", "[" * 61):
        assert split_speakers(unit * (400_000 // len(unit))) is None


@pytest.mark.parametrize(
    ("value", "field"),
    [({"trace": 3}, "trace"), ({"trace": {"trajectory": {}}}, "trace.trajectory"), ({}, "trace")],
)
def test_error_names_the_location(value: Any, field: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse("mast", value)
    assert caught.value.field == field


AG2 = {
    "instance_id": "i1",
    "problem_statement": ["How many boats", "are in the harbour?"],
    "trajectory": [
        {"content": ["Count", "them."], "role": "user", "name": "asker"},
        {"content": "There are four.", "role": "assistant", "name": "solver"},
    ],
    "note": {"verdict": "wrong count"},
}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(AG2),
        json.dumps(AG2["trajectory"], indent=1),
        "\n".join(json.dumps(message) for message in AG2["trajectory"]),
    ],
    ids=["object", "list", "lines"],
)
def test_json_inside_a_text_is_messages(text: str) -> None:
    record = parse("mast", {"mas_name": "AG2", "trace": {"trajectory": text}, "mast_annotation": {}})
    assert [(step.agent, step.content) for step in record.trajectory.steps] == [
        ("asker", "Count\nthem."),
        ("solver", "There are four."),
    ]


def test_fields_inside_a_json_text_are_annotation() -> None:
    record = parse("mast", {"trace": json.dumps(AG2), "mast_annotation": {}})
    assert record.trajectory.task == "How many boats\nare in the harbour?"
    assert record.annotation.extra["trace"]["note"] == {"verdict": "wrong count"}
    assert record.trajectory.extra == {}


@pytest.mark.parametrize("text", ["{not JSON", '{"a": 1}', "[1, 2]", "[]", "[note] begin"])
def test_other_text_with_brackets_stays_text(text: str) -> None:
    (step,) = parse("mast", {"mas_name": "m", "trace": text, "mast_annotation": {}}).trajectory.steps
    assert step.content == text
