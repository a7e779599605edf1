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
def test_values_the_agent_was_never_given(arguments: dict[str, object], quote: str, at_least: float) -> None:
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
def test_values_that_were_given(before: dict[str, object]) -> None:
    arguments = {"order_id": "ZX81QL", "email": "made.up@mail.org", "amount": 299, "birthday": "1986-03-14"}
    assert found(run(before, call("change", arguments)), "unknown_origin") == ()


def test_values_of_the_task_the_prompt_and_the_tools_are_given() -> None:
    arguments = {"a_id": "TASK77", "b_id": "PROMPT77", "c_id": "TOOL77"}
    spec = ToolSpec(name="change", parameters={"properties": {"c_id": {"default": "TOOL77"}}})
    trajectory = run(call("change", arguments), task="use TASK77", prompts={"": "PROMPT77"}, tools=[spec])
    assert found(trajectory, "unknown_origin") == ()


def test_a_value_has_no_origin_in_its_own_effect() -> None:
    step = call("get", {"order_id": "ZX81QL"}, "Error: order ZX81QL not found")
    assert len(found(run(step, step), "unknown_origin")) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"count": 3},
        {"direction": "north"},
        {"query": "hotels2 near x99"},
        {"path": "src/a1.py"},
        {"code": "x1y2z3"},
        {"flag": True},
        {"name": "Ann Lee"},
    ],
)
def test_values_an_agent_may_choose(arguments: dict[str, object]) -> None:
    assert found(run(call("do", arguments)), "unknown_origin") == ()


def test_what_an_agent_creates_weighs_less() -> None:
    (finding,) = found(run(call("create_ticket", {"ticket_id": "T7781"})), "unknown_origin")
    assert finding.probability < 0.5


def test_options_switch_parts_off() -> None:
    trajectory = run(call("do", {"amount": 299, "day": "2031-05-20", "order_id": "ZX81QL"}))
    names = [f.data["argument"] for f in found(trajectory, "unknown_origin", numbers=False, dates=False)]
    assert names == ["order_id"]
    assert found(trajectory, "unknown_origin", ignore=["amount", "day", "order_id"]) == ()


@pytest.mark.parametrize(
    "text", ["Let's assume the following values:", "I use placeholder data here.", "We simulate the data."]
)
def test_data_that_is_admitted_to_be_made_up(text: str) -> None:
    (bare,) = found(run(said(text)), "unknown_origin")
    (coded,) = found(run(code("rows = [12.5, 14.1, 16.0]", text)), "unknown_origin")
    assert bare.probability < coded.probability


@pytest.mark.parametrize(
    "text", ["I assumed nothing.", "Replace the old key.", "A mockingbird sang in 1960."]
)
def test_words_that_admit_nothing(text: str) -> None:
    assert found(run(said(text)), "unknown_origin") == ()
