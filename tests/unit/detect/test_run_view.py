from __future__ import annotations

import pytest

from agentguard.detect._text import jaccard_similarity, to_lower
from agentguard.detect.quotes import quote_span, quote_text
from agentguard.detect.run_view import RunView
from agentguard.detect.step_facts import ActionForm, StepFacts, canonicalize_json, iter_code_fences
from agentguard.trajectory.model import Trajectory
from tests.unit.detect.builders import call, code, env, run, said, tool, user


def view_of(trajectory: Trajectory) -> RunView:
    view = RunView.from_trajectory(trajectory)
    for step in trajectory.steps:
        view.append(step)
    return view


def test_results_are_visible_in_the_next_turn_in_both_shapes() -> None:
    for steps in ([call("f", {}, "R"), said("ok")], [code("f()"), env("R"), said("ok")]):
        trajectory = run(*steps)
        facts = view_of(trajectory).get_facts(trajectory.steps[-1])
        assert [result.lower_text for result in facts.previous_results] == ["r"]


def test_result_is_visible_once() -> None:
    trajectory = run(call("f", {}, "R"), said("one"), said("two"))
    assert view_of(trajectory).get_facts(trajectory.steps[-1]).previous_results == ()


@pytest.mark.parametrize(
    ("step", "form", "key"),
    [
        (call("f", {"b": 1, "a": 2}), ActionForm.CALL, '{"a":2,"b":1}'),
        (call("f", "  Not  JSON "), ActionForm.CALL, "not json"),
        (code("x = 1\n\n\ny = 2  "), ActionForm.CODE, "x = 1\ny = 2"),
        (said("Thought: hm\nAction: open[door]"), ActionForm.LINE, "open[door]"),
        (
            said("go <action>open door</action>", modules={"action": "open door"}),
            ActionForm.LINE,
            "open door",
        ),
    ],
)
def test_actions_in_every_notation_are_parsed(step: dict[str, object], form: ActionForm, key: str) -> None:
    trajectory = run(step)
    (action,) = StepFacts(trajectory.steps[0]).actions
    assert (action.form, action.key) == (form, key)
    text = trajectory.steps[0].text(action.field)
    assert text[action.start : action.end]


@pytest.mark.parametrize(
    "step", [said("```json\n{}\n```"), said("just words"), env("```python\nx\n```"), user("x")]
)
def test_text_without_action_has_none(step: dict[str, object]) -> None:
    assert StepFacts(run(step).steps[0]).actions == ()


def test_evicted_facts_are_recomputed() -> None:
    trajectory = run(*[said(f"step {i}") for i in range(200)])
    view = view_of(trajectory)
    assert len(view._facts) <= 64
    assert view.get_facts(trajectory.steps[0]).lower_text == "step 0"
    assert len(view.moves) <= 48


def test_schema_is_compiled_once_for_all_runs_with_the_tool() -> None:
    view = RunView(tools=[tool("f", a={"type": "integer"})])
    first = view.get_validator("f")
    assert first is not None
    assert view.get_validator("f") is first
    assert RunView(tools=[tool("f", a={"type": "integer"})]).get_validator("f") is first
    assert view.get_validator("g") is None


@pytest.mark.parametrize(
    "value", [10**30, "\ud800", {"a": object()}, {1: {2: 3}}, [[[]]], None, {"b": 1, "a": {"d": 1, "c": 2}}]
)
def test_any_value_has_a_canonical_text(value: object) -> None:
    assert canonicalize_json(value) == canonicalize_json(value)
    assert isinstance(canonicalize_json(value), str)


def test_deep_nesting_has_a_canonical_text() -> None:
    value: list[object] = []
    for _ in range(5_000):
        value = [value]
    assert isinstance(canonicalize_json(value), str)


def test_lower_case_keeps_offsets() -> None:
    text = "İSTANBUL İs Big"
    assert len(to_lower(text)) == len(text)
    assert to_lower(text).find("big") == text.find("Big")


def test_fences_are_parsed_in_one_pass() -> None:
    text = "a ```py\nx\n``` b ```\ny\n``` ```open"
    assert [(language, body) for language, body, _, _ in iter_code_fences(text)] == [
        ("py", "x\n"),
        ("", "y\n"),
    ]
    assert list(iter_code_fences("```" * 50_000)) == []


def test_similarity_is_jaccard() -> None:
    a, b = frozenset("abcd"), frozenset("abce")
    assert jaccard_similarity(a, b) == 3 / 5
    assert jaccard_similarity(a, a) == 1
    assert jaccard_similarity(a, frozenset()) == 0
    assert jaccard_similarity(frozenset(), frozenset()) == 1


def test_quotes_are_exact_and_short() -> None:
    step = run(said("x" * 1_000 + "end")).steps[0]
    (quote,) = quote_span(step, "content", 5)
    assert quote.quote == step.content[quote.start : quote.end]
    assert len(quote.quote) <= 240
    assert quote_text(step, "content", "end")[0].start == 1_000
    assert quote_span(step, "reasoning") == ()
