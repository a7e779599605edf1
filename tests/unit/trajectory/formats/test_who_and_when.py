from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from agentguard.errors import FormatError
from agentguard.trajectory.formats.reader import load_records
from agentguard.trajectory.formats.who_and_when import parse_agent_name
from agentguard.trajectory.model import Record, RootCause, Source
from agentguard.trajectory.serialization import encode_step
from tests.data import shared_data
from tests.unit.trajectory.formats.samples import SAMPLES, parse, records, sample


@pytest.fixture
def generated() -> Record:
    return records(SAMPLES / "who_and_when.json")[0]


@pytest.fixture
def crafted() -> Record:
    return records(SAMPLES / "who_and_when.crafted.json")[0]


def test_steps_are_history_entries(generated: Record) -> None:
    steps = generated.trajectory.steps
    assert [(step.agent, step.source) for step in steps] == [
        ("Checker_Expert", Source.AGENT),
        ("Counter_Expert", Source.AGENT),
        ("Counter_Expert", Source.AGENT),
        ("Runner", Source.ENVIRONMENT),
        ("Checker_Expert", Source.AGENT),
    ]
    assert [step.source_index for step in steps] == [0, 1, 2, 3, 4]
    assert steps[4].extra == {"role": "user", "note": "last"}


def test_run_fields_are_read(generated: Record) -> None:
    run = generated.trajectory
    assert (run.id, run.task) == ("who_and_when", "How many bridges does the town have?")
    assert run.system_prompts == {"Counter_Expert": "You count.", "Checker_Expert": "You check."}
    assert run.extra == {"question_id": "q-1"}


def test_annotation_is_read(generated: Record) -> None:
    judged = generated.annotation
    cause = RootCause(step=2, agent="Counter_Expert", reason="It counted the same bridge twice.")
    assert (judged.failed, judged.root_cause, judged.failures) == (True, cause, (cause,))
    assert judged.answer == "seven of them"
    assert judged.group == "how many bridges does the town have"
    assert judged.extra == {"level": "1"}


def test_agent_with_several_labels_is_one_agent(crafted: Record) -> None:
    speakers = [(step.agent, step.source) for step in crafted.trajectory.steps]
    assert speakers == [
        ("human", Source.USER),
        *[("Orchestrator", Source.AGENT)] * 2,
        ("WebSurfer", Source.AGENT),
        ("Orchestrator", Source.AGENT),
    ]
    assert crafted.trajectory.steps[1].extra == {"role": "Orchestrator (thought)"}


def test_step_beyond_the_history_is_kept(crafted: Record) -> None:
    assert crafted.annotation.root_cause is not None
    assert crafted.annotation.root_cause.step == 11
    assert crafted.annotation.extra == {"mistake_type": "stale"}


@pytest.mark.parametrize(
    ("role", "agent"),
    [
        ("Orchestrator (thought)", "Orchestrator"),
        ("Orchestrator (-> WebSurfer)", "Orchestrator"),
        ("Orchestrator (termination condition)", "Orchestrator"),
        ("Ada (Expert)", "Ada (Expert)"),
        ("  Ada ", "Ada"),
    ],
)
def test_agent_names_are_normalised(role: str, agent: str) -> None:
    assert parse_agent_name(role) == agent


@pytest.mark.parametrize(
    ("said", "source"),
    [
        (["exitcode: 1 (execution failed)", "There is no code to run"], Source.ENVIRONMENT),
        (["The script ran, then exited with 0", "No code block found"], Source.ENVIRONMENT),
        (["exitcode: 0", "I think it is eight"], Source.AGENT),
        (["Here is what the exitcode: means"], Source.AGENT),
    ],
)
def test_executing_agent_is_the_environment(said: list[str], source: Source) -> None:
    history = [{"role": "user", "name": "Box", "content": text} for text in said]
    run = parse("who_and_when", {"history": history, "question": "q"}).trajectory
    assert {step.source for step in run.steps} == {source}


@pytest.mark.parametrize(
    ("fields", "failed"),
    [
        ({"is_correct": True}, False),
        ({"is_corrected": False}, True),
        ({"mistake_step": "1"}, True),
        ({}, None),
    ],
)
def test_verdicts_are_read(fields: dict[str, Any], failed: bool | None) -> None:
    assert parse("who_and_when", {"history": [], **fields}).annotation.failed is failed


@pytest.mark.parametrize("step", ["two", "", [], 1.5, True, 1e300, "9" * 30])
def test_non_numeric_step_is_an_error(step: Any) -> None:
    with pytest.raises(FormatError) as caught:
        parse("who_and_when", {**sample("who_and_when.json"), "mistake_step": step})
    assert caught.value.field == "mistake_step"


def test_missing_speaker_is_an_error() -> None:
    with pytest.raises(FormatError) as caught:
        parse("who_and_when", {"history": [{"content": "x"}]})
    assert caught.value.field == "history[0].role"


@pytest.mark.parametrize(
    ("subset", "runs", "outside"), [("Algorithm-Generated", 97, 2), ("Hand-Crafted", 45, 2)]
)
def test_development_data_is_read(subset: str, runs: int, outside: int) -> None:
    found = load_records(shared_data(f"who_and_when/{subset}"))
    assert len(found) == len({record.trajectory.id for record in found}) == runs
    assert all(record.annotation.failed for record in found)
    # The annotated agent is not always the speaker of the annotated step.
    strangers = 0
    for record in found:
        cause, steps = record.annotation.root_cause, record.trajectory.steps
        assert cause is not None
        assert cause.step is not None
        strangers += cause.step >= len(steps) or steps[cause.step].agent != cause.agent
        assert {"mistake_agent", "mistake_reason", "ground_truth"}.isdisjoint(
            {*record.trajectory.extra, *(key for step in steps for key in encode_step(step))}
        )
    assert strangers == outside
    executors = {s.agent for r in found for s in r.trajectory.steps if s.source is Source.ENVIRONMENT}
    assert executors == {{97: "Computer_terminal", 45: "ComputerTerminal"}[runs]}


def test_groups_join_equal_questions_of_both_subsets() -> None:
    found = load_records(shared_data("who_and_when"))
    groups = {record.annotation.group for record in found}
    assert len(found) == 142
    assert len(groups) < 142
    assert None not in groups
    assert {field.name for field in fields(found[0])} == {"trajectory", "annotation", "file", "original_id"}
