"""Acceptance tests from declared rules."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from agentguard.errors import ConfigError
from agentguard.guard import Guard
from agentguard.recover.acceptance.acceptance_test import AcceptanceTest, AcceptanceVerdict
from agentguard.recover.acceptance.rules import (
    FunctionRule,
    PatternRule,
    SchemaRule,
    TaskValueRule,
    extract_field,
)
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.trajectory.model import Source, Step, Trajectory

TASK = "Order 4711 of 2 May: send it to Paul  Gray."


def run(answer: str = "", task: str = TASK) -> Trajectory:
    steps = (Step(index=0, source=Source.AGENT, agent="a", content=answer),) if answer else ()
    return Trajectory(id="r", format="event_log", task=task, steps=steps)


def refused(rule: object, answer: str, task: str = TASK) -> str:
    said = AcceptanceTest(rule)(run(answer, task))  # type: ignore[arg-type]
    return "" if said is True else str(said)


SCHEMA = SchemaRule({"type": "object", "required": ["order"], "properties": {"order": {"type": "integer"}}})


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        ('{"order": 4711}', ""),
        ("the order is 4711", "not valid JSON"),
        ("{}", "required"),
        ('{"order": "x"}', "at order"),
        ("[" * 5000, "not valid JSON"),
    ],
)
def test_schema_violation_names_its_location(answer: str, part: str) -> None:
    said = refused(SCHEMA, answer)
    assert part in said
    assert bool(said) == bool(part)


def test_pattern_matches_text_or_field() -> None:
    assert not refused(PatternRule(r"\d{4}"), "number 4711")
    assert refused(PatternRule(r"^\d{4}$"), "number 4711")
    assert not refused(PatternRule(r"^\d{4}$", field="items.0.id"), '{"items": [{"id": "4711"}]}')
    assert refused(PatternRule("x", field="items.1.id"), '{"items": [{"id": "4711"}]}').endswith(
        "is missing."
    )
    assert refused(PatternRule("(?i)sorry", absent=True), "Sorry, no.").endswith("contains a forbidden text.")
    assert not refused(PatternRule("(?i)sorry", absent=True), "Done.")


def test_hostile_pattern_takes_linear_time() -> None:
    assert refused(PatternRule(r"^(a+)+$"), "a" * 50_000 + "b")


def test_field_must_match_the_task() -> None:
    rule = TaskValueRule("order", r"Order (\d+)")
    assert not refused(rule, '{"order": "4711"}')
    assert not refused(rule, '{"order": 4711}')
    assert refused(rule, '{"order": "4712"}')
    assert refused(rule, "no JSON")
    assert not refused(TaskValueRule("name"), '{"name": "paul gray"}'), "case and white space do not count"
    assert refused(TaskValueRule("name"), '{"name": "Mary"}')
    assert refused(TaskValueRule("name"), '{"name": "Paul G"}'), "a part of a word is another word"
    assert refused(TaskValueRule("name"), '{"name": ""}')


def test_value_absent_from_task_is_rejected() -> None:
    rule = TaskValueRule("phone", r"phone (\d+)")
    assert not refused(rule, '{"phone": ""}')
    assert not refused(rule, '{"phone": null}')
    assert not refused(rule, "{}")
    assert refused(rule, '{"phone": "555"}')


def test_function_decides_and_may_give_a_reason() -> None:
    assert not refused(FunctionRule(lambda text, run: text.isupper(), name="loud"), "YES")
    assert refused(FunctionRule(lambda text, run: text.isupper(), name="loud"), "yes") == (
        "The answer does not satisfy the rule loud."
    )
    assert refused(FunctionRule(lambda text, run: "speak up", name="loud"), "yes") == "speak up"


def test_raising_rule_rejects_and_is_named_in_the_record() -> None:
    accept = AcceptanceTest(FunctionRule(lambda text, run: 1 / 0 > 0, name="broken"))
    assert accept(run("x")) == "The rule broken could not be checked."
    (verdict,) = accept.verdicts
    assert verdict.checks[0].error == "ZeroDivisionError"
    assert not verdict.accepted


def test_record_lists_passed_and_failed_rules() -> None:
    told: list[AcceptanceVerdict] = []
    accept = AcceptanceTest(
        SCHEMA, TaskValueRule("order", r"Order (\d+)"), observers=[told.append], max_verdicts=2
    )
    assert accept(run('{"order": 1}')) == "The field order does not match the task."
    assert accept(run('{"order": 4711}')) is True
    assert accept(run()) is not True
    assert [verdict.accepted for verdict in accept.verdicts] == [True, False], "the latest two are kept"
    assert [verdict.accepted for verdict in told] == [False, True, False]
    first = told[0]
    assert first.output == '{"order": 1}'
    assert first.task == TASK
    assert [(check.rule, check.passed) for check in first.checks] == [
        ("schema", True),
        ("from task order", False),
    ]


def test_rules_may_be_data() -> None:
    accept = AcceptanceTest.from_data(
        [
            {"schema": {"type": "object"}},
            {"matches": "^[0-9]+$", "field": "order"},
            {"from_task": "order", "pattern": "Order ([0-9]+)"},
        ]
    )
    assert accept(run('{"order": "4711"}')) is True
    assert "not match" in str(accept(run('{"order": "12"}')))


@pytest.mark.parametrize(
    "rules",
    [
        [{"match": "x"}],
        [{"matches": "("}],
        [{"matches": 3}],
        [{"matches": "x", "fields": "a"}],
        [{"schema": {"type": 12}}],
        [{"schema": {}}, {"schema": {}}],
        [],
    ],
)
def test_invalid_rule_is_a_config_error(rules: list[dict[str, object]]) -> None:
    with pytest.raises(ConfigError, match="acceptance"):
        AcceptanceTest.from_data(rules)
    with pytest.raises(ConfigError, match="max_verdicts"):
        AcceptanceTest(SCHEMA, max_verdicts=0)


@given(st.text(), st.text(min_size=1))
def test_any_output_is_accepted_without_exception(output: str, field: str) -> None:
    extract_field(output, field)
    accept = AcceptanceTest(SCHEMA, PatternRule("a", field=field, name="m"), TaskValueRule(field))
    accept(run(output))
    assert not any(check.error for verdict in accept.verdicts for check in verdict.checks)


def test_rejected_answer_is_regenerated_with_reason_in_task() -> None:
    accept = AcceptanceTest(TaskValueRule("order", r"Order (\d+)"))
    guard = Guard(accept=accept, recover=RecoveryPolicy(escalations={"acceptance": "restart"}))
    answers = iter(['{"order": "1"}', '{"order": "4711"}'])
    asked: list[str] = []

    def model(messages: list[dict[str, str]]) -> str:
        asked.append(messages[0]["content"])
        return next(answers)

    with guard.run(TASK) as guarded:
        while not guarded.done:
            guarded.tools(guarded.model(model))
    assert guarded.answer == '{"order": "4711"}'
    assert asked[0] == TASK
    assert "does not match the task" in asked[1]
    assert [verdict.accepted for verdict in accept.verdicts] == [False, True]
