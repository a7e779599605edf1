from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given, strategies as st
from langchain_core.load import dumpd
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage, messages_to_dict

from agentguard.errors import FormatError
from agentguard.trajectory.formats.reader import detect_format, load_records
from agentguard.trajectory.model import Source, Usage
from tests.unit.trajectory.formats.samples import SAMPLES, parse

CALL = {"name": "look", "args": {"at": "door"}, "id": "c1"}
MESSAGES = [
    HumanMessage("Look.", id="h"),
    AIMessage(
        [{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "c1", "name": "look", "input": {}}],
        id="a",
        tool_calls=[CALL],
        usage_metadata={"input_tokens": 5, "output_tokens": 3, "total_tokens": 8},
        response_metadata={"model_name": "m-1", "stop_reason": "tool_use"},
    ),
    ToolMessage("closed", tool_call_id="c1", id="t", status="error"),
]


def checkpoint(id: str, parent: str | None, messages: list[Any], **more: Any) -> dict[str, Any]:
    return {
        "values": {"messages": [message.model_dump() for message in messages]},
        "next": [],
        "checkpoint": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": id},
        "parent_checkpoint": {"thread_id": "t", "checkpoint_id": parent} if parent else None,
        "tasks": [],
        **more,
    }


@pytest.mark.parametrize(
    "encode",
    [
        messages_to_dict,
        lambda all: [dumpd(one) for one in all],
        lambda all: [one.model_dump() for one in all],
    ],
    ids=["data", "constructor", "flat"],
)
def test_three_spellings_give_the_same_steps(encode: Any) -> None:
    value = json.loads(json.dumps(encode(MESSAGES)))
    assert detect_format(value).name == "langchain"
    steps = parse("langchain", value).trajectory.steps
    assert [step.source for step in steps] == [Source.USER, Source.AGENT]
    assert steps[1].content == "I look."
    assert [(call.id, call.arguments) for call in steps[1].tool_calls] == [("c1", {"at": "door"})]
    assert [(seen.content, seen.is_error) for seen in steps[1].observations] == [("closed", True)]
    assert steps[1].usage == Usage(prompt_tokens=5, completion_tokens=3)
    assert (steps[1].model, steps[1].stop_reason) == ("m-1", "tool_use")


def test_chat_messages_with_tool_calls_are_no_state_of_a_graph() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "closed"},
    ]
    (record,) = load_records(io.StringIO(json.dumps(messages)))
    assert record.trajectory.format == "openai_chat"


def test_copies_of_calls_in_additional_kwargs_are_dropped() -> None:
    (record,) = load_records(SAMPLES / "langchain.json")
    assert [call.id for call in record.trajectory.steps[2].tool_calls] == ["k1", "k2"]


def test_calls_only_in_additional_kwargs_are_read() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "door"}'}}
    message = {"type": "ai", "data": {"content": "", "additional_kwargs": {"tool_calls": [call]}}}
    steps = parse("langchain", [message]).trajectory.steps
    assert steps[0].tool_calls[0].arguments == {"at": "door"}


def test_invalid_call_keeps_its_text_and_error() -> None:
    (record,) = load_records(SAMPLES / "langchain.json")
    call = record.trajectory.steps[2].tool_calls[1]
    assert (call.arguments, call.raw_arguments, call.extra["error"]) == (None, "{note: ", "not JSON")


def test_replay_in_a_history_is_an_abandoned_branch() -> None:
    (record,) = load_records(SAMPLES / "langchain.history.json")
    run = record.trajectory
    assert run.id == "harbour-1"
    assert [step.content for step in run.steps] == ["Count the boats.", "", "There are 4 boats."]
    (branch,) = run.branches
    assert branch.fork_step == 1
    assert [step.content for step in branch.steps] == ["", "There are 2 boats."]


def test_message_removed_from_the_state_stays_in_the_run() -> None:
    summary = AIMessage("The door is closed.", id="s")
    history = [checkpoint("2", "1", [RemoveMessage(id="h"), summary]), checkpoint("1", None, MESSAGES)]
    steps = parse("langchain", history).trajectory.steps
    assert [step.content for step in steps] == ["Look.", "I look.", "The door is closed."]


def test_subgraph_with_own_messages_is_a_run() -> None:
    inner = checkpoint("9", None, [HumanMessage("Check the lock.", id="x"), AIMessage("It is open.", id="y")])
    inner["checkpoint"]["checkpoint_ns"] = "locksmith:1"
    repeated = checkpoint("8", None, MESSAGES)
    repeated["checkpoint"]["checkpoint_ns"] = "copy:1"
    records = load_records([checkpoint("1", None, MESSAGES), inner, repeated], format="langchain")
    assert [record.trajectory.id for record in records] == ["t", "t/locksmith:1"]


@pytest.mark.parametrize(
    ("tasks", "status"),
    [
        ([{"error": "ValueError('no key')"}], "ValueError('no key')"),
        ([{"interrupts": [{"value": "Sure?"}]}], "interrupt"),
        ([], None),
    ],
)
def test_pending_task_of_the_last_state_is_the_exit_status(tasks: list[Any], status: str | None) -> None:
    run = parse("langchain", checkpoint("1", None, MESSAGES, tasks=tasks)).trajectory
    assert run.exit_status == status


def test_label_in_the_state_is_annotation() -> None:
    value = {"messages": messages_to_dict(MESSAGES), "success": False, "city": "Lund"}
    record = parse("langchain", value)
    assert record.annotation.failed is True
    assert record.trajectory.extra == {"city": "Lund"}


def test_value_without_messages_names_the_field() -> None:
    with pytest.raises(FormatError, match="messages"):
        parse("langchain", {"values": 3})


@given(parents=st.lists(st.integers(0, 30), max_size=12))
def test_any_tree_of_checkpoints_keeps_the_messages_of_every_path(parents: list[int]) -> None:
    paths: list[list[str]] = [["m0"]]
    parent_ids: list[str | None] = [None]
    for number, choice in enumerate(parents, start=1):
        parent = choice % number
        paths.append([*paths[parent], f"m{number}"])
        parent_ids.append(f"c{parent}")
    history = [
        checkpoint(f"c{i}", parent_ids[i], [AIMessage(text, id=text) for text in path])
        for i, path in enumerate(paths)
    ][::-1]
    run = parse("langchain", history).trajectory
    leaves = [path for i, path in enumerate(paths) if f"c{i}" not in parent_ids]
    assert [step.content for step in run.steps] == leaves[-1]
    branches = [
        [step.content for step in (*run.steps[: branch.fork_step], *branch.steps)] for branch in run.branches
    ]
    assert branches == leaves[:-1]
