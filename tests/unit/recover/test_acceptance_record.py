"""The store keeps the acceptance test's result of each attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentguard.errors import ConfigError
from agentguard.guard import Guard
from agentguard.judge.base import Question
from agentguard.recover.acceptance.acceptance_record import (
    AcceptanceRecord,
    build_input_messages,
    parse_attempt,
)
from agentguard.recover.acceptance.acceptance_test import AcceptanceTest
from agentguard.recover.acceptance.llm_rule import LlmRule
from agentguard.recover.acceptance.rules import PatternRule
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.store import Store
from agentguard.store.db.rows import AcceptanceRow
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, Trajectory
from tests.unit.judge.judges import DealingJudge, Said, TableJudge

TASK = "Which order is late?"


def guarded(tmp_path: Path, replies: list[str], *, ladder: object = "hint") -> tuple[Store, str]:
    """Run a guarded model with these replies; return the open store and the run's id."""
    store = Store.open(tmp_path / "runs.db")
    guard = Guard(
        accept=AcceptanceTest(PatternRule(r"^\d{4}$")),
        recover=RecoveryPolicy(
            escalations={"acceptance": ladder},  # type: ignore[dict-item]
            budget=RecoveryBudget(rollbacks=5, rollbacks_per_step=5, hints=5),
        ),
        store=store,
    )
    left = iter(replies)
    with guard.run(TASK, system="Be short.", id="r1") as run:
        while not run.done:
            run.tools(run.model(lambda messages: next(left)))
    store.flush()
    return store, run.answer


@pytest.mark.parametrize("ladder", ["hint", {"restart": {"times": 3}}, "rollback"])
def test_attempts_are_stored_with_one_shared_input(tmp_path: Path, ladder: object) -> None:
    store, answer = guarded(tmp_path, ["order 4711", "4711"], ladder=ladder)
    with store:
        rows = store.list_run_acceptances("r1")
        every = store.list_acceptances().rows
    assert answer == "4711"
    assert [(one.attempt, one.accepted) for one in rows] == [(1, False), (2, True)]
    assert every == rows
    first, second = (parse_attempt(one) for one in rows)
    assert first is not None
    assert second is not None
    assert (
        first[0]
        == second[0]
        == [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": TASK},
        ]
    )
    assert (first[1], second[1]) == ("order 4711", "4711")
    assert rows[0].data["checks"] == [
        {
            "rule": "matches",
            "passed": False,
            "reason": "The answer does not have the required form.",
            "error": "",
        }
    ]


def test_attempts_are_deleted_with_their_run(tmp_path: Path) -> None:
    store, _ = guarded(tmp_path, ["4711"])
    with store:
        assert store.list_run_acceptances("r1")
        store.delete_run("r1")
        assert store.list_acceptances().rows == ()


def test_record_pages_are_complete_and_separated_by_tenant(tmp_path: Path) -> None:
    from agentguard.store.read.pagination import Page

    with Store.open(tmp_path / "runs.db") as store:
        for number in range(7):
            store.write(
                AcceptanceRow(run_id=f"r{number}", accepted=True, tenant="a", created_at=float(number))
            )
        store.write(AcceptanceRow(run_id="other", accepted=True, tenant="b"))
        store.flush()
        seen, after = [], None
        while True:
            page = store.list_acceptances(Page(limit=3, after=after), tenant="a")
            seen += [one.run_id for one in page.rows]
            after = page.next
            if after is None:
                break
    assert seen == [f"r{number}" for number in range(7)]


def test_tool_results_are_part_of_the_input() -> None:
    call = ToolCall(id="c", name="look", arguments={"in": "orders"})
    steps = (
        Step(index=0, source=Source.USER, agent="user", content=TASK),
        Step(
            index=1,
            source=Source.AGENT,
            agent="clerk",
            content="Looking.",
            tool_calls=(call,),
            observations=(Observation(content="4711 is late", call_id="c", tool="look"),),
        ),
        Step(index=2, source=Source.AGENT, agent="clerk", content="order 4711"),
        Step(index=3, source=Source.AGENT, agent="clerk", content="4711"),
    )
    run = Trajectory(id="r", format="event_log", task=TASK, steps=steps)
    messages = build_input_messages(run, "4711")
    assert [one["role"] for one in messages] == ["user", "assistant", "tool"]
    assert messages == build_input_messages(
        Trajectory(id="r", format="event_log", task=TASK, steps=steps[:3]), "order 4711"
    )


def test_run_without_user_message_gets_its_task() -> None:
    run = Trajectory(id="r", format="event_log", task=TASK, steps=(), system_prompts={"": "Be short."})
    assert [one["role"] for one in build_input_messages(run, "x")] == ["system", "user"]


def test_verdict_is_equal_with_and_without_record() -> None:
    rows: list[object] = []

    class Rows:
        def write(self, *given: object) -> None:
            rows.extend(given)

    test = AcceptanceTest(PatternRule(r"^\d{4}$"))
    step = Step(index=0, source=Source.AGENT, agent="a", content="order 4711")
    run = Trajectory(id="r", format="event_log", task=TASK, steps=(step,))
    assert AcceptanceRecord(test, Rows())(run) == test(run)
    assert len(rows) == 1
    assert len(test.verdicts) == 2


def yes_if(word: str) -> TableJudge:
    def says(run: Trajectory, question: Question) -> Said:
        return "yes" if any(word in line for line in question.context[1:]) else "no"

    return TableJudge(says)


def output_of(text: str) -> Trajectory:
    step = Step(index=0, source=Source.AGENT, agent="a", content=text)
    return Trajectory(id="r", format="event_log", task=TASK, steps=(step,))


def test_judge_answers_a_question_about_the_output() -> None:
    test = AcceptanceTest(LlmRule("Does it name its source?", yes_if("ledger")))
    assert test.may_block
    assert test(output_of("4711, says the ledger")) is True
    assert "A reviewer answered no to the question: Does it name its source?" in str(test(output_of("4711")))


def test_disagreeing_or_unavailable_judges_reject() -> None:
    split = AcceptanceTest(LlmRule("Is it right?", [yes_if("4711"), yes_if("never")]))
    assert split(output_of("4711")) == "The rule asks Is it right? could not be checked."
    assert split.verdicts[0].checks[0].error.startswith("JudgeError: the judge could not answer: ")
    away = AcceptanceTest(LlmRule("Is it right?", DealingJudge(away=True)))
    assert away(output_of("4711")) is not True


@pytest.mark.parametrize(("question", "least"), [("", 0.5), (" ", 0.5), ("Is it?", 0), ("Is it?", 1)])
def test_invalid_question_is_rejected(question: str, least: float) -> None:
    with pytest.raises(ConfigError, match="acceptance"):
        LlmRule(question, yes_if("x"), min_probability=least)
