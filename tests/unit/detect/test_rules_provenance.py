from __future__ import annotations

import pytest

from agentguard.trajectory.model import ToolSpec
from tests.unit.detect.builders import call, code, env, found, run, said, user


@pytest.mark.parametrize(
    ("arguments", "quote", "at_least"),
    [
        ({"order_id": "ZX81QL"}, "ZX81QL", 0.5),
        ({"email": "made.up@mail.org"}, "made.up@mail.org", 0.5),
        ({"order_id": "#W773155"}, "#W773155", 0.5),
        ({"amount": 299}, "299", 0.4),
        ({"birthday": "1986-03-14"}, "1986-03-14", 0.3),
        ({"items": [{"part_number": "B-7731"}]}, "B-7731", 0.5),
    ],
)
def test_ungrounded_value_is_reported(arguments: dict[str, object], quote: str, at_least: float) -> None:
    (finding,) = found(run(user("Please change my order"), call("change", arguments)), "unknown_origin")
    assert finding.probability >= at_least
    assert finding.evidence[0].quote == quote


@pytest.mark.parametrize(
    "before",
    [
        user("It is ZX81QL, mail made.up@mail.org, 299 euros, 1986-03-14"),
        env("found: ZX81QL made.up@mail.org 299 1986-03-14"),
        call("list", {}, '{"id": "ZX81QL", "mail": "made.up@mail.org", "sum": 299.0, "born": "1986-03-14"}'),
    ],
    ids=["user", "environment", "result"],
)
def test_given_value_is_not_reported(before: dict[str, object]) -> None:
    arguments = {"order_id": "ZX81QL", "email": "made.up@mail.org", "amount": 299, "birthday": "1986-03-14"}
    assert found(run(before, call("change", arguments)), "unknown_origin") == ()


def test_values_of_task_prompt_and_tools_are_known() -> None:
    arguments = {"a_id": "TASK77", "b_id": "PROMPT77", "c_id": "TOOL77"}
    spec = ToolSpec(name="change", parameters={"properties": {"c_id": {"default": "TOOL77"}}})
    trajectory = run(call("change", arguments), task="use TASK77", prompts={"": "PROMPT77"}, tools=[spec])
    assert found(trajectory, "unknown_origin") == ()


def test_value_is_not_grounded_by_its_own_effect() -> None:
    step = call("get", {"order_id": "ZX81QL"}, "Error: order ZX81QL not found")
    assert len(found(run(step, step, task="Find my order."), "unknown_origin")) == 1


def test_value_in_a_recording_without_any_input_is_not_reported() -> None:
    step = call("get", {"order_id": "ZX81QL"}, "ok")
    assert found(run(step), "unknown_origin") == ()
    assert len(found(run(user("Hello"), step), "unknown_origin")) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"count": 3},
        {"timeout": 60000},
        {"numResults": 250},
        {"direction": "north"},
        {"query": "hotels2 near x99"},
        {"path": "src/a1.py"},
        {"code": "x1y2z3"},
        {"flag": True},
        {"name": "Ann Lee"},
    ],
)
def test_freely_chosen_value_is_not_reported(arguments: dict[str, object]) -> None:
    assert found(run(call("do", arguments)), "unknown_origin") == ()


def test_value_created_by_agent_has_lower_probability() -> None:
    (finding,) = found(run(user("Hi"), call("create_ticket", {"ticket_id": "T7781"})), "unknown_origin")
    assert finding.probability < 0.5


def test_options_disable_parts() -> None:
    trajectory = run(user("Hi"), call("do", {"amount": 299, "day": "2031-05-20", "order_id": "ZX81QL"}))
    names = [f.data["argument"] for f in found(trajectory, "unknown_origin", numbers=False, dates=False)]
    assert names == ["order_id"]
    assert found(trajectory, "unknown_origin", ignore=["amount", "day", "order_id"]) == ()


@pytest.mark.parametrize(
    "text", ["Let's assume the following values:", "I use placeholder data here.", "We simulate the data."]
)
def test_admittedly_invented_data_is_reported(text: str) -> None:
    (bare,) = found(run(said(text)), "unknown_origin")
    (coded,) = found(run(code("rows = [12.5, 14.1, 16.0]", text)), "unknown_origin")
    assert bare.probability < coded.probability


@pytest.mark.parametrize(
    "text", ["I assumed nothing.", "Replace the old key.", "A mockingbird sang in 1960."]
)
def test_other_words_do_not_admit_invention(text: str) -> None:
    assert found(run(said(text)), "unknown_origin") == ()


def test_option_that_the_agent_offered_and_the_user_answered_is_known() -> None:
    offer = said("I suggest the booking code QX7781 for you.")
    take = call("book", {"ref": "QX7781"}, "ok")
    assert found(run(user("Hi"), offer, take), "unknown_origin") != ()
    assert found(run(offer, user("Yes, take that one."), take), "unknown_origin") == ()


def test_sum_and_difference_of_known_numbers_are_known() -> None:
    read = call("get_prices", {}, '{"first": 410, "second": 275}')
    assert found(run(read, call("pay", {"amount": 685}, "ok")), "unknown_origin") == ()
    assert found(run(read, call("pay", {"amount": 135}, "ok")), "unknown_origin") == ()
    assert found(run(user("Hi"), read, call("pay", {"amount": 777}, "ok")), "unknown_origin") != ()
