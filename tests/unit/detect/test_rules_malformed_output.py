from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.detect.builders import call, code, env, found, run, said, user


def test_empty_turn_is_reported() -> None:
    (finding,) = found(run(user("Hello"), said(" \n")), "empty_output")
    assert finding.step == 1
    (thought,) = found(run(said("", reasoning="hm")), "empty_output")
    assert thought.probability < finding.probability


@pytest.mark.parametrize(
    "step", [said("x"), call("f"), user(""), env(""), said("", modules={"action": "go"})]
)
def test_turn_with_content_is_not_empty(step: dict[str, object]) -> None:
    assert found(run(step), "empty_output") == ()


@pytest.mark.parametrize(
    "step",
    [
        said("The list begins with", extra={"finish_reason": "length"}),
        said("The list begins with", extra={"stop_reason": "max_tokens"}),
        call("f", '{"rows": [1, 2, '),
        said("I write the file:\n```python\nrows = [1, 2, 3]\nfor row in rows:\n    pri"),
    ],
    ids=["finish_reason", "stop_reason", "arguments", "code"],
)
def test_truncated_turn_is_reported(step: dict[str, object]) -> None:
    assert len(found(run(step), "truncated_output")) == 1


@pytest.mark.parametrize(
    "step",
    [
        said("All there.", extra={"finish_reason": "stop"}),
        call("f", {"rows": [1]}),
        call("f", "rows"),
        code("f()"),
        said("a stray ``` at the end ```"),
        env("```python\nx"),
    ],
    ids=["stop", "arguments", "no object", "closed", "inline", "environment"],
)
def test_complete_turn_is_not_truncated(step: dict[str, object]) -> None:
    assert found(run(step), "truncated_output") == ()


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't assist with that request.",
        "I cannot help with this.",
        "As an AI language model, I am unable to provide that.",
        "Sorry, I won't do that for you.",
    ],
)
def test_refusal_is_reported(text: str) -> None:
    assert len(found(run(said(text)), "refusal")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "The shop can't help with returns after 30 days.",
        "Sorry for the delay. Here is your order.",
        "I can't find the key, so I look in the kitchen.",
        "I will continue with the second part.",
    ],
)
def test_other_text_is_not_a_refusal(text: str) -> None:
    assert found(run(said(text)), "refusal") == ()
    assert found(run(user("I can't help with that")), "refusal") == ()


@pytest.mark.parametrize(
    "text",
    [
        "I call the tool.\nObservation: the door is open",
        "exitcode: 0 (execution succeeded)\nCode output: 4",
        "I ask the user.\nUser: yes, go ahead",
    ],
    ids=["observation", "output", "user"],
)
def test_agent_that_writes_turns_of_others_is_reported(text: str) -> None:
    (finding,) = found(run(said(text)), "role_confusion")
    assert finding.codes[0] == "mast:disobey_role_specification"


def test_agent_that_claims_another_name_is_reported() -> None:
    steps = [
        said("I look at the sources.", agent="Web_Expert"),
        said("I am Web Expert and say yes.", agent="Critic"),
    ]
    assert len(found(run(*steps), "role_confusion")) == 1


@pytest.mark.parametrize(
    "steps",
    [
        [env("Observation: the door is open")],
        [said("My observation: none needed. The user wants tea.")],
        [said("```\nUser: sample dialogue\nObservation: x\n```")],
        [
            said("I am Web Expert.", agent="Web_Expert"),
            said("As the Web Expert found, yes.", agent="Web_Expert"),
        ],
        [code("f()"), env("exitcode: 1 (failed)"), said("The result was:\nexitcode: 1 (failed)")],
    ],
    ids=["environment", "prose", "code", "itself", "quoted"],
)
def test_agent_in_its_role_is_not_reported(steps: list[dict[str, object]]) -> None:
    assert found(run(*steps), "role_confusion") == ()


@pytest.mark.parametrize(
    "ending",
    [
        "I am out of options and give up.",
        "The maximum number of steps is exhausted.",
        "N/A",
        "The request cannot be completed.",
        "I mark this task as infeasible.",
    ],
)
def test_surrender_is_found_in_the_last_turn_only(ending: str) -> None:
    (finding,) = found(run(call("look", {}, "a door"), said(ending)), "gave_up")
    assert (finding.step, finding.codes) == (1, ("mast:premature_termination",))
    assert found(run(said(ending), said("I found it: the door is open.")), "gave_up") == ()


def test_recorded_limit_is_a_surrender() -> None:
    told = replace(run(call("look", {}, "a door")), exit_status="LimitsExceeded")
    (finding,) = found(told, "gave_up")
    assert (finding.step, "agent_error:system.step_limit" in finding.codes) == (0, True)
    assert found(replace(told, exit_status="Submitted"), "gave_up") == ()


def test_empty_turn_with_unknown_content_is_not_accused() -> None:
    told = run(said("I look."), said(""))
    assert found(told, "empty_output") != ()
    assert found(replace(told, is_content_recorded=False), "empty_output") == ()
    unread = (told.steps[0], replace(told.steps[1], unknown_parts=("image",)))
    assert found(replace(told, steps=unread), "empty_output") == ()


def test_stop_reason_of_a_refusal_is_a_refusal_and_no_empty_turn() -> None:
    refused = run(user("Hello"), said("", stop_reason="refusal"))
    (finding,) = found(refused, "refusal")
    assert "refusal" in finding.message
    assert found(refused, "empty_output") == ()
    assert found(run(user("Hello"), said("", stop_reason="end_turn")), "refusal") == ()


def test_stop_reason_of_a_length_limit_is_a_truncation() -> None:
    (finding,) = found(run(user("Hello"), said("The first", stop_reason="max_tokens")), "truncated_output")
    assert finding.probability == 0.7
    assert found(run(user("Hello"), said("The first", stop_reason="end_turn")), "truncated_output") == ()
