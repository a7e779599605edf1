from __future__ import annotations

from pathlib import Path

from agentguard.trajectory.formats.reader import load_trajectory
from agentguard.trajectory.model import Observation, Source, Usage

SAMPLE = Path(__file__).resolve().parents[3] / "contract" / "samples" / "smolagents.json"


def test_memory_steps_become_turns_with_calls_and_results() -> None:
    run = load_trajectory(SAMPLE)
    assert (run.format, run.task, run.exit_status) == (
        "smolagents",
        "When is the tide high at Port Elm?",
        "success",
    )
    assert [step.source for step in run.steps[:3]] == [Source.SYSTEM, Source.USER, Source.AGENT]
    failed, coded, final = run.steps[3:]
    assert failed.observations == (
        Observation(
            content="The table of Port Elm is closed.", call_id="c1", tool="tide_table", is_error=True
        ),
    )
    assert failed.usage == Usage(prompt_tokens=80, completion_tokens=12)
    assert (failed.started_at, failed.ended_at) == (1760000001.0, 1760000003.0)
    assert coded.tool_calls[0].arguments == {"code": "print(high_tide('Port Elm'))"}
    assert coded.observations[0].content.endswith("14:20")
    assert final.observations[0].content == "The tide is high at 14:20."


def test_bare_list_and_images_are_read() -> None:
    action = {"step_number": 1, "tool_calls": None, "model_output": "I look.", "observations": "a cat"}
    run = load_trajectory([{"task": "What is it?", "task_images": ["…"]}, action, {"riddle": 1}])
    assert run.unknown_parts == {"image": 1, "memory step": 1}
    assert run.steps[-1].content == "a cat"


def test_failed_call_and_system_prompt_are_read_from_the_model_messages() -> None:
    action = {
        "step_number": 1,
        "model_input_messages": [{"role": "system", "content": [{"type": "text", "text": "Use tools."}]}],
        "model_output": "I call it.",
        "model_output_message": {"tool_calls": [{"id": "c", "function": {"name": "tide", "arguments": {}}}]},
        "tool_calls": None,
        "observations": None,
        "error": {"type": "AgentToolExecutionError", "message": "closed port"},
    }
    run = load_trajectory([{"task": "When?"}, action])
    assert run.system_prompts == {"": "Use tools."}
    assert run.steps[-1].observations == (
        Observation(content="closed port", call_id="c", tool="tide", is_error=True),
    )


def test_answer_at_the_limit_of_steps_is_a_turn() -> None:
    run = load_trajectory(SAMPLE.with_name("smolagents.code.json"))
    assert [step.content for step in run.steps[-2:]] == ["High tide is at 14:20.", "Reached max steps."]
