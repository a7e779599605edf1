"""Faults at the judge and the store of a guard."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import pytest

from agentguard import Guard
from agentguard.chaos import Campaign, CampaignRunner, ExperimentResult, InjectionBinding
from agentguard.judge.base import ChoiceQuestion, JudgeAnswer, Question
from agentguard.recover.acceptance.acceptance_test import AcceptanceTest
from agentguard.recover.acceptance.llm_rule import LlmRule
from agentguard.store import Store
from agentguard.trajectory.model import Trajectory
from examples.chaos_agent import SeatMap, call_llm


class SureJudge:
    """Judge that is sure of a yes."""

    name = "sure"

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        del transcript
        return tuple(
            JudgeAnswer(
                question=question.id,
                probabilities={
                    option: 0.98 if option == "yes" else 0.02
                    for option in (
                        question.options if isinstance(question, ChoiceQuestion) else ("yes", "no")
                    )
                },
            )
            for question in questions
        )


def book_seat(binding: InjectionBinding, *, store: Store | None = None, accept: Any = None) -> Trajectory:
    seats = SeatMap()
    guard = Guard(store=store, accept=accept)
    guard.tool(effect="write", reconcile=seats.find_booking)(seats.book)
    guard.tool(effect="read")(seats.search)
    model, tools = binding.bind_model(call_llm), binding.bind_tools([seats.search, seats.book])
    with guard.run("Book a seat in row 1.", tools=tools, id=binding.run_id) as run:
        while not run.done:
            run.tools(run.model(model))
    return run.trajectory


def book_with_store(binding: InjectionBinding) -> Trajectory:
    with tempfile.TemporaryDirectory() as folder, Store.open(f"{folder}/runs.db") as store:
        return book_seat(binding, store=binding.bind_store(store))


def book_with_judge(binding: InjectionBinding) -> Trajectory:
    rule = LlmRule("Does the answer name the seat?", binding.bind_judge(SureJudge()))
    return book_seat(binding, accept=AcceptanceTest(rule))


def run_campaign(agent: Any, *faults: str) -> list[ExperimentResult]:
    campaign = Campaign.model_validate(
        {
            "version": 1,
            "target": {"agent": "tests:agent", "effects": ["book"]},
            "faults": {"tool": [], "model": [], "guard": faults},
            "schedule": {"max_calls_per_site": 2},
        }
    )
    return list(CampaignRunner(campaign, agent=agent).run().results)


@pytest.mark.parametrize("fault", ["store_locked", "disk_full"])
def test_store_that_cannot_be_used_leads_to_no_second_booking(fault: str) -> None:
    claim, settlement = sorted(run_campaign(book_with_store, fault), key=lambda one: one.call)
    assert (claim.site, claim.outcome) == ("guard:store", "failed")
    assert claim.error.startswith("StoreUnavailable: store: database")
    assert "tool:book" not in claim.events  # without a durable claim the guard does not book
    assert (settlement.outcome, settlement.events["tool:book"]) == ("survived", ["ok"])


@pytest.mark.parametrize(
    ("fault", "seconds", "extra_calls"), [("judge_down", 0, 1), ("judge_wrong", 0, 1), ("judge_slow", 60, 0)]
)
def test_answer_that_a_faulty_judge_refuses_is_asked_for_again(
    fault: str, seconds: float, extra_calls: int
) -> None:
    (result,) = run_campaign(book_with_judge, fault)
    assert (result.site, result.outcome) == ("guard:judge", "survived")
    assert (result.seconds, result.extra_calls, result.extra_effects) == (seconds, extra_calls, 0)


def test_agent_without_bound_guard_gets_no_faults_of_the_guard() -> None:
    assert run_campaign(book_seat, "judge_down", "store_locked") == []
