from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from agentguard.errors import FormatError
from agentguard.taxonomy.catalog import TaxonomyCatalog
from agentguard.trajectory.formats.agent_error_bench import (
    FAILURE_TYPES,
    FORMAT,
    extract_new_text,
    split_tagged_sections,
)
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import read
from agentguard.trajectory.model import Record
from tests.unit.trajectory.formats.samples import SAMPLES, parse, records, sample

FOLDER = SAMPLES / "agent_error_bench.folder"
RUN = sample("agent_error_bench.json")


def label(**change: Any) -> dict[str, Any]:
    return {**RUN, "label": {**RUN["label"], **change}}


def test_step_is_an_assistant_turn_with_its_observation() -> None:
    (record,) = records(SAMPLES / "agent_error_bench.json")
    run = record.trajectory
    assert run.task.startswith("Your task is to: put a clean cup")
    assert run.system_prompts == {"agent": "You act in a house."}
    assert [step.source_index for step in run.steps] == [2, 4, 6]
    second = run.steps[1]
    assert second.modules == {
        "memory": "The cup on the sink is clean.",
        "reflection": "Half done.",
        "planning": "Take it.",
        "action": "take cup 1 from sink 1",
    }
    assert [(c.name, c.arguments) for c in second.tool_calls] == [
        ("take", {"command": "take cup 1 from sink 1"})
    ]
    assert [(o.content, o.call_id) for o in second.observations] == [
        ("You take cup 1. It is dirty.", second.tool_calls[0].id)
    ]


def test_labels_count_assistant_turns_from_one() -> None:
    annotation = parse("agent_error_bench", RUN).annotation
    cause = annotation.root_cause
    assert cause is not None
    assert (cause.step, cause.agent, cause.module) == (1, "agent", "memory")
    assert cause.codes == ("agent_error:memory.hallucination",)
    assert cause.reason == "Nobody said that it is clean."
    # A blank type gives a failure without a code.
    assert [(one.step, one.module, one.codes) for one in annotation.failures][1] == (2, "planning", ())


def test_outcome_is_part_of_the_annotation() -> None:
    record = parse("agent_error_bench", RUN)
    assert record.annotation.failed is True
    assert record.trajectory.extra == {"environment": "alfworld", "steps": 3}
    assert "won" not in str(record.trajectory)
    won = {**RUN, "metadata": {"won": True}}
    del won["label"]
    assert parse("agent_error_bench", won).annotation.failed is False


def test_folder_joins_trajectories_and_labels() -> None:
    (record,) = records(FOLDER)
    assert record.trajectory.id == "house_1"
    assert record.annotation == parse("agent_error_bench", RUN).annotation


def test_label_without_trajectory_is_reported(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FOLDER, tmp_path / "bench"))
    (folder / "Label" / "more_labels.json").write_text(
        json.dumps([{**RUN["label"], "trajectory_id": "house_2"}])
    )
    found = list(read(folder))
    assert len([one for one in found if isinstance(one, Record)]) == 1
    (broken,) = [one for one in found if isinstance(one, UnreadableRecord)]
    assert "'house_2' has no trajectory" in str(broken.error)
    assert broken.error.file == str(folder / "Label" / "more_labels.json")


def test_broken_file_does_not_hide_others(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FOLDER, tmp_path / "bench"))
    runs = folder / "Original_Failure_Trajectory" / "alfworld"
    (runs / "house_2.json").write_text(json.dumps({"messages": [{}]}))
    found = list(read(folder))
    assert [one.error.field for one in found if isinstance(one, UnreadableRecord)] == ["messages[0].role"]
    assert len([one for one in found if isinstance(one, Record)]) == 1


@pytest.mark.parametrize(
    ("module", "type", "code"),
    [
        ("plan", "inefficient_plan", "agent_error:planning.inefficient_plan"),
        ("planning", "Plan_Inefficient ", "agent_error:planning.inefficient_plan"),
        ("Action", "parameter error", "agent_error:action.parameter_error"),
        ("system", "step-limit", "agent_error:system.step_limit"),
        ("memory", "step_limit", None),
        ("reflection", "unheard_of", None),
        ("legs", "step_limit", None),
    ],
)
def test_types_are_normalised(module: str, type: str, code: str | None) -> None:
    rows = [{"step": 1, module: {"failure_type": type, "reasoning": ""}}]
    value = label(critical_failure_step=1, critical_failure_module=module, step_annotations=rows)
    cause = parse("agent_error_bench", value).annotation.root_cause
    assert cause is not None
    assert cause.codes == ((code,) if code else ())


def test_chat_log_with_metadata_is_not_claimed() -> None:
    messages = RUN["messages"]
    assert FORMAT.score_match({"messages": messages, "metadata": {"environment": "production"}}) == 0.0
    assert FORMAT.score_match({"messages": messages, "metadata": {"environment": "gaia"}}) > 0.9


def test_types_match_the_taxonomy() -> None:
    codes = {f"{module}.{type}" for module, types in FAILURE_TYPES.items() for type in types}
    assert {code.id for code in TaxonomyCatalog.load().get_taxonomy("agent_error").codes} == codes


@pytest.mark.parametrize(
    ("text", "sections"),
    [
        ("<plan>a</plan> b <action>c</action>", [("plan", "a"), ("action", "c")]),
        ("<plan>never closed", [("plan", "never closed")]),
        ("<think><memory>m</memory>t</think>", [("memory", "m"), ("think", "t")]),
        ("<PLAN>a</Plan>", [("plan", "a")]),
        ("</plan>a<other>b</other>", []),
        ("<plan></plan>", []),
        ("<memory_recall>r</memory_recall>", [("memory_recall", "r")]),
    ],
)
def test_tags_are_parsed(text: str, sections: list[tuple[str, str]]) -> None:
    assert list(split_tagged_sections(text)) == sections


def test_json_tool_call_has_arguments() -> None:
    text = '<tool_call>{"name": "search", "arguments": {"q": "cup"}}</tool_call>'
    value = {"messages": [{"role": "assistant", "content": text}], "metadata": {"won": False}}
    (call,) = parse("agent_error_bench", value).trajectory.steps[0].tool_calls
    assert (call.name, call.arguments) == ("search", {"q": "cup"})


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (label(critical_failure_step=0), "label.critical_failure_step"),
        (label(critical_failure_step="two"), "label.critical_failure_step"),
        (label(step_annotations=[{"memory": {}}]), "label.step_annotations[0].step"),
        (label(critical_failure_module=3), "label.critical_failure_module"),
        ({**RUN, "metadata": {"won": "no"}}, "metadata.won"),
        ({**RUN, "messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"metadata": {}}, "messages"),
    ],
)
def test_error_names_the_location(value: Any, field: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse("agent_error_bench", value)
    assert caught.value.field == field


PROMPT = """You are an expert agent. Your task is to: {task}
Prior to this step, you have already taken {count} step(s). Below are the most recent observations: {history}
You are now at step {step} and your current observation is: {observation}
Your admissible actions of the current situation are: ['look'].
Now it's your turn to take an action."""


def render(step: int, observation: str, history: str = "") -> str:
    return PROMPT.format(
        task="water the fern.", count=step - 1, step=step, history=history, observation=observation
    )


def test_prompt_in_an_observation_is_cut_to_what_is_new() -> None:
    messages = [
        {"role": "user", "content": render(1, "You see a fern.")},
        {"role": "assistant", "content": "<action>look</action>"},
        {"role": "user", "content": render(2, "The fern\nis dry.", "[Observation 1: 'You see a fern.']")},
    ]
    record = parse("agent_error_bench", {"messages": messages, "metadata": {"won": False}})
    assert record.trajectory.steps[0].observations[0].content == "The fern\nis dry."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Water the fern.\nUse a can.\nThe can is empty.", "The can is empty."),
        ("The can is empty.\nUse a can.", "The can is empty.\nUse a can."),
        ("", ""),
    ],
)
def test_lines_of_the_first_prompt_are_not_new(text: str, expected: str) -> None:
    assert extract_new_text(text, "Water the fern.\nUse a can.") == expected


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ('tool: web_search\nparameters: {"query": "ferns"}', "web_search", {"query": "ferns"}),
        ("tool: finish", "finish", {}),
        ("tool box 1", "tool", {"command": "tool box 1"}),
    ],
)
def test_named_tool_is_the_name_of_the_call(text: str, name: str, arguments: dict[str, Any]) -> None:
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": f"<action>{text}</action>"},
    ]
    record = parse("agent_error_bench", {"messages": messages, "metadata": {"won": False}})
    (call,) = record.trajectory.steps[0].tool_calls
    assert (call.name, call.arguments) == (name, arguments)
