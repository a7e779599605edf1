from __future__ import annotations

import time

import pytest

from agentguard.errors import ConfigError
from tests.unit.detect.builders import call, env, found, run, said, user

LOOK, PAY = call("look", {}, "a bill"), call("pay", {"sum": 3}, "paid")


@pytest.mark.parametrize(
    "options", [{"requires": {"pay": "look"}}, {"requires": {"pay": ["look"]}}, {"order": ["look", "pay"]}]
)
def test_tool_before_its_prerequisite_is_reported(options: dict[str, object]) -> None:
    (finding,) = found(run(PAY, LOOK, PAY), "control_flow", **options)
    assert finding.step == 0
    assert finding.data["missing"] == ["look"]


def test_failed_call_does_not_satisfy_prerequisite() -> None:
    failed = call("look", {}, "Error: no light")
    assert [f.step for f in found(run(failed, PAY, LOOK, PAY), "control_flow", requires={"pay": "look"})] == [
        1
    ]


def test_respected_or_undeclared_order_is_not_reported() -> None:
    assert found(run(LOOK, PAY, LOOK), "control_flow", order=["look", "pay"]) == ()
    assert found(run(PAY), "control_flow") == ()


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"allowed": {"clerk": ["look"]}}, [1]),
        ({"allowed": {"*": ["look"]}}, [1, 2]),
        ({"allowed": {"*": ["look"], "clerk": ["pay"]}}, [0, 2]),
        ({"denied": {"clerk": "pay"}}, [1]),
        ({"denied": {"*": ["pay"]}, "allowed": {"clerk": ["pay", "look"]}}, [1, 2]),
        ({}, []),
    ],
)
def test_forbidden_tool_of_an_agent_is_reported(options: dict[str, object], steps: list[int]) -> None:
    clerk = {"agent": "clerk"}
    trajectory = run({**LOOK, **clerk}, {**PAY, **clerk}, PAY, said("pay"))
    assert [f.step for f in found(trajectory, "capability", **options)] == steps


def policy(trajectory: object, *rules: object) -> list[int]:
    return [f.step for f in found(trajectory, "policy", rules=list(rules))]  # type: ignore[arg-type]


RUN = run(
    user("My card is 4000-1234, yes"),
    said("I keep 4000-1234 in mind."),
    call("pay", {"card": "4000-1234"}, "charged 4000-1234"),
    env("log: 4000-1234"),
)


@pytest.mark.parametrize(
    ("more", "steps"),
    [
        ({}, [0, 1, 2, 2, 3]),
        ({"where": "user"}, [0]),
        ({"where": "agent"}, [1]),
        ({"where": "arguments"}, [2]),
        ({"where": "results"}, [2, 3]),
        ({"tool": "pay"}, [2]),
        ({"tool": "look"}, []),
        ({"agent": "terminal"}, [3]),
    ],
)
def test_forbidden_text_is_reported_in_its_scope(more: dict[str, str], steps: list[int]) -> None:
    assert policy(RUN, {"forbid": r"\d{4}-\d{4}", **more}) == steps


def test_offsets_are_correct_beyond_ascii_and_for_lone_surrogates() -> None:
    text = "é 😀 \ud800 secret"
    (finding,) = found(run(said(text)), "policy", rules=[{"forbid": "secret"}])
    assert finding.evidence[0].quote == "secret"
    assert text[finding.evidence[0].start :] == "secret"


def test_missing_required_text_is_reported() -> None:
    assert policy(RUN, {"require": "receipt", "message": "Give a receipt."}) == [3]
    assert policy(RUN, {"require": "charged"}) == []


def test_missing_prerequisite_of_a_call_is_reported() -> None:
    rule = {"before": r"(?i)\byes\b", "tool": "pay", "name": "consent"}
    assert policy(run(user("hm"), PAY, user("Yes"), PAY), rule) == [1]
    assert policy(RUN, rule) == []


def test_rule_sets_message_probability_and_name() -> None:
    rule = {"forbid": "bill", "name": "no bills", "message": "Never read bills.", "probability": 0.3}
    (finding,) = found(run(LOOK), "policy", rules=[rule])
    assert (finding.message, finding.probability, finding.data["rule"]) == (
        "Never read bills.",
        0.3,
        "no bills",
    )


@pytest.mark.parametrize(
    "rule",
    [
        "forbid",
        {},
        {"forbid": "a", "require": "b"},
        {"forbid": "("},
        {"forbid": r"(a)\1"},
        {"forbid": "(?=a)"},
        {"forbid": 5},
        {"forbid": ""},
        {"forbid": "a" * 2_000},
        {"forbid": "a", "colour": "red"},
        {"forbid": "a", "where": "nowhere"},
        {"forbid": "a", "probability": 2},
        {"before": "a"},
    ],
)
def test_invalid_rule_is_rejected(rule: object) -> None:
    with pytest.raises(ConfigError, match=r"policy.*rules"):
        policy(run(said("a")), rule)


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(a|aa)+$", r"(.*a){20}", r"(x+x+)+y"])
def test_hostile_patterns_take_linear_time(pattern: str) -> None:
    start = time.process_time()
    policy(run(*[said("a" * 20_000 + "x" * 20_000 + "!")] * 3), {"forbid": pattern})
    assert time.process_time() - start < 2.0
