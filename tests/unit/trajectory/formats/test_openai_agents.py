from __future__ import annotations

from typing import Any

from agentguard.trajectory.formats.reader import load_trajectory
from agentguard.trajectory.model import Usage
from tests.unit.trajectory.formats.samples import sample


def state(**fields: Any) -> dict[str, Any]:
    return {"$schemaVersion": "1.13", "original_input": "go", "generated_items": [], **fields}


def item(item_type: str, agent: str, **raw: Any) -> dict[str, Any]:
    return {"type": item_type, "agent": {"name": agent}, "raw_item": raw}


def test_items_have_the_name_of_their_agent() -> None:
    run = load_trajectory(sample("openai_agents.json"))
    assert [step.agent for step in run.steps] == ["user", "clerk", "baker", "baker"]
    assert [len(step.observations) for step in run.steps] == [0, 1, 1, 0]
    assert run.steps[-1].content == "Tray 4 has 12 rolls."


def test_usage_of_each_response_is_at_its_turn() -> None:
    run = load_trajectory(sample("openai_agents.json"))
    assert [step.usage for step in run.steps[1:]] == [
        Usage(prompt_tokens=20, completion_tokens=3, cached_tokens=2),
        Usage(prompt_tokens=30, completion_tokens=4, cached_tokens=2),
        Usage(prompt_tokens=40, completion_tokens=5, cached_tokens=2),
    ]


def test_call_that_waits_for_approval_is_read_once_and_is_the_exit_status() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    items = [item("tool_call_item", "a", **call), item("tool_approval_item", "a", **call)]
    run = load_trajectory(state(generated_items=items, current_step={"type": "next_step_interruption"}))
    assert [len(step.tool_calls) for step in run.steps] == [0, 1]
    assert run.exit_status == "interruption"


def test_input_may_be_items() -> None:
    run = load_trajectory(state(original_input=[{"role": "user", "content": "a"}]))
    assert run.task == "a"


def test_session_items_have_precedence() -> None:
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]}
    both = [item("message_output_item", "a", **message)] * 2
    run = load_trajectory(state(generated_items=both[:1], session_items=both))
    assert run.steps[1].content == "x\nx"


def test_unknown_item_is_counted() -> None:
    run = load_trajectory(state(generated_items=[item("thunder_item", "a", type="thunder")]))
    assert run.unknown_parts == {"thunder": 1}


def test_item_of_the_input_is_not_read_again() -> None:
    message: dict[str, Any] = {"id": "m", "type": "message", "role": "assistant"}
    message["content"] = [{"type": "output_text", "text": "x"}]
    run = load_trajectory(state(original_input=[message], generated_items=[item("message", "a", **message)]))
    assert [step.content for step in run.steps] == ["x"]
