from __future__ import annotations

from agentguard.trajectory.grouping import group_by_agent, normalize_group_key
from agentguard.trajectory.model import Source, Step, ToolCall, Trajectory


def test_normalize_group_key_case_spacing_and_unicode_form_are_ignored() -> None:
    assert (
        normalize_group_key("  What's\tthe  Time?? ")
        == normalize_group_key("what s the time")
        == "what s the time"
    )
    assert normalize_group_key("caf\u0065\u0301") == normalize_group_key("CAF\u00c9")


def test_normalize_group_key_punctuation_only_is_empty() -> None:
    assert normalize_group_key("?!") == ""


def build_run(*tools: str, model: str | None = None) -> Trajectory:
    calls = tuple(ToolCall(id=str(n), name=name, arguments={}) for n, name in enumerate(tools))
    step = Step(index=0, source=Source.AGENT, agent="agent", model=model, tool_calls=calls)
    return Trajectory(id="run", format="test", task="", steps=(step,))


def test_group_by_agent_connects_runs_that_share_a_tool() -> None:
    first, second, third, other = group_by_agent(
        [build_run("bash"), build_run("bash", "submit"), build_run("submit"), build_run("sql")]
    )
    assert first == second == third != other


def test_group_by_agent_separates_models() -> None:
    first, second = group_by_agent([build_run("bash", model="a"), build_run("bash", model="b")])
    assert first != second


def test_group_by_agent_adds_runs_without_calls_to_the_largest_agent() -> None:
    names = group_by_agent([build_run("sql"), build_run("bash"), build_run("bash"), build_run()])
    assert names[3] == names[1]


def test_group_by_agent_without_any_call_is_one_agent() -> None:
    assert group_by_agent([build_run(), build_run()]) == ("test", "test")
