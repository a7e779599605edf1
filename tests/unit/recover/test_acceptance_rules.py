"""Acceptance rules for texts, numbers, tool calls and sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agentguard.errors import ConfigError
from agentguard.recover import (
    AcceptanceTest,
    AnswerSources,
    LlmRule,
    NumberRule,
    TextRule,
    ToolCallRule,
)
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, Trajectory
from tests.unit.judge.judges import TableJudge


def build_run(*results: tuple[str, dict[str, Any], str, bool | None], answer: str = "Done.") -> Trajectory:
    steps = [
        Step(
            index=i,
            source=Source.AGENT,
            agent="a",
            tool_calls=(ToolCall(id=f"c{i}", name=tool, arguments=arguments),),
            observations=(Observation(content=text, call_id=f"c{i}", is_error=flag),),
        )
        for i, (tool, arguments, text, flag) in enumerate(results)
    ]
    last = Step(index=len(steps), source=Source.AGENT, agent="a", content=answer)
    return Trajectory(id="r", format="event_log", task="Book seat 4.", steps=(*steps, last))


EMPTY = build_run()


@pytest.mark.parametrize(
    ("rule", "output", "part"),
    [
        (TextRule("Refund"), "your  REFUND is on its way", ""),
        (TextRule(["refund", "7 days"]), "a refund, soon", "'7 days'"),
        (TextRule(["7 days"]), "within 7\n days", ""),
        (TextRule("as an AI", absent=True), "As an  ai, I", "must not contain"),
        (TextRule("as an AI", absent=True), "Booked.", ""),
        (NumberRule("total", minimum=1, maximum=9), '{"total": 9}', ""),
        (NumberRule("total", maximum=9), '{"total": "9.5"}', "at most 9"),
        (NumberRule("total", minimum=1), '{"sum": 9}', "field total has no number"),
        (NumberRule("total", minimum=1), '{"total": "NaN"}', "no number"),
        (NumberRule(minimum=1, pattern=r"total: ([0-9,.]+)"), "total: 1,200.50", ""),
        (NumberRule(maximum=5, pattern="[0-9]+"), "there are 7", "at most 5"),
        (NumberRule(maximum=5, pattern="[0-9]+"), "there are none", "no number"),
    ],
)
def test_text_and_number_rules_name_the_violation(rule: Any, output: str, part: str) -> None:
    violation = rule.find_violation(output, EMPTY)
    assert part in violation
    assert bool(violation) == bool(part)


@pytest.mark.parametrize(
    ("rule", "accepted"),
    [
        (ToolCallRule("book"), True),
        (ToolCallRule("book", arguments={"seat": 4}), True),
        (ToolCallRule("book", arguments={"seat": 5}), False),
        (ToolCallRule("book", minimum=2), False),
        (ToolCallRule("book", maximum=1), True),
        (ToolCallRule("pay", minimum=0, maximum=0), True),
        (ToolCallRule("book", minimum=0, maximum=0), False),
        (ToolCallRule("refund"), False),
    ],
)
def test_tool_call_rule_counts_successful_calls_only(rule: ToolCallRule, accepted: bool) -> None:
    run = build_run(
        ("book", {"seat": 4}, "Error: the seat is locked", None),
        ("book", {"seat": 4}, "seat 4 is yours", None),
        ("refund", {}, "ok", True),
    )
    assert (rule.find_violation("", run) == "") is accepted


@pytest.mark.parametrize(
    "rule",
    [
        {"contains": []},
        {"excludes": "  "},
        {"number": "total"},
        {"number": "total", "minimum": 4, "maximum": 2},
        {"number": "total", "minimum": "4"},
        {"calls": "book", "minimum": 2, "maximum": 1},
        {"calls": "book", "times": 1},
    ],
)
def test_invalid_rule_data_is_a_config_error(rule: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="acceptance rule"):
        AcceptanceTest.from_data([rule])


@given(st.text())
def test_any_output_is_checked_without_error(output: str) -> None:
    accept = AcceptanceTest.from_data(
        [{"contains": "a"}, {"excludes": "b"}, {"number": "", "minimum": 0}, {"calls": "book"}]
    )
    assert accept.evaluate(output, EMPTY).is_complete


def test_grounded_rule_shows_the_matching_passages_to_the_judge(tmp_path: Path) -> None:
    terms = tmp_path / "terms.md"
    filler = "\n\n".join(f"Paragraph {i} about other matters. " + "word " * 100 for i in range(60))
    terms.write_text(f"{filler}\n\nA refund takes 7 days.", encoding="utf-8")
    judge = TableJudge(lambda run, question: "yes")
    sources = AnswerSources(tools=["search"], files=[terms])
    rule = LlmRule("Is every statement supported?", judge, sources=sources)
    run = build_run(("search", {}, "the fee is 3 euros", None), ("book", {}, "internal", None))
    assert rule.find_violation("A refund takes 7 days; the fee is 3 euros.", run) == ""
    shown = "\n".join(judge.asked[0][1].context)
    assert "Source terms.md: A refund takes 7 days." in shown
    assert "Source search, step 0: the fee is 3 euros" in shown
    assert "internal" not in shown
    assert len(shown) < 14_000


def test_grounded_rule_without_source_refuses_without_a_question() -> None:
    judge = TableJudge(lambda run, question: "yes")
    rule = LlmRule("Is it supported?", judge, sources=AnswerSources(tools=["search"]))
    assert "No source" in rule.find_violation("It is free.", EMPTY)
    assert not judge.asked


def test_unreadable_source_file_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, part in (("absent", "cannot be read"), ("binary", "not UTF-8")):
        with pytest.raises(ConfigError, match=part):
            AnswerSources(files=[tmp_path / name])
