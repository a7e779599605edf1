"""Contract of every integration that can sample and repair: votes, alternates, repairs, their cost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentguard.guard import Guard
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.recover.selective_redundancy import SelectiveRedundancy
from agentguard.recover.strategy import RecoveryOutcome
from tests.contract.candidate_worlds import AWAITS, RUNS_TOOLS, WORLDS, ContractRun

every = pytest.mark.parametrize("world", WORLDS)
runs_tools = pytest.mark.parametrize("world", RUNS_TOOLS)
NINE, FOUR = ("book", {"seat": 9}), ("book", {"seat": 4})
FIND, DONE = ("find", {"where": "aisle"}), "Seat 4 is booked."


def play(world: str, answers: Any, *, finds: Any = (), **parts: Any) -> ContractRun:
    script = answers if isinstance(answers, dict) else {"own": answers}
    played = ContractRun({name: list(given) for name, given in script.items()}, find_results=list(finds))
    recover = RecoveryPolicy(**{"on_fail": "nudge", **parts.pop("recover", {})})
    guard = Guard(recover=recover, **{"localizer": Nothing(), **parts})
    guard.tool(effect="write")(played.book)
    guard.tool(effect="read")(played.find)
    WORLDS[world](guard, played)
    return played


class Nothing:
    """Localizer without results, so that only findings count."""

    name = "nothing"

    def locate(self, trajectory: Any, findings: Any) -> Any:
        from agentguard.localize.base import Diagnosis, Verdict

        return Diagnosis(
            trajectory_id=trajectory.id, method=self.name, verdict=Verdict.ABSTAINED, probability=0.5
        )


def models(played: ContractRun) -> list[str]:
    return [asked.model for asked in played.requests]


def told(played: ContractRun, at: int = -1) -> str:
    return " ".join(text for text in played.requests[at].user_texts if text.startswith("[guard]"))


@every
def test_a_call_that_most_candidates_disagree_with_is_never_made(world: str) -> None:
    played = play(world, [NINE, FOUR, FOUR, DONE], recover={"redundancy": SelectiveRedundancy()})
    assert played.bookings == {4: 1}
    assert played.answer.strip() == DONE
    assert len(played.requests) == 4
    (recovery,) = played.session.recoveries
    assert (recovery.plan.strategy, recovery.trigger) == ("vote", "protection")
    assert recovery.outcome in (RecoveryOutcome.PENDING, RecoveryOutcome.CONFIRMED)
    assert (recovery.cost["calls"], recovery.cost["candidates"], recovery.cost["votes"]) == (2, 3, 2)
    assert played.session.account.usage.samples == played.session.account.usage.calls == 2
    (step,) = [step for step in played.session.run.steps if step.tool_calls]
    assert step.extra["agentguard"]["elected"]["taken"] == 1
    assert step.tool_calls[0].arguments == {"seat": 4}
    assert [b.steps[0].tool_calls[0].arguments for b in played.session.run.branches] == [
        {"seat": 9},
        {"seat": 4},
    ]


@every
def test_only_protected_turns_are_sampled_and_no_more_than_decides(world: str) -> None:
    played = play(world, [FIND, FOUR, FOUR, DONE], recover={"redundancy": SelectiveRedundancy()})
    assert played.bookings == {4: 1}
    assert len(played.requests) == 4, "the find and the end are asked for once, the booking twice"
    assert played.session.recoveries[0].cost["calls"] == 1


@every
def test_without_agreement_the_next_rung_is_taken(world: str) -> None:
    answers = [("book", {"seat": 1}), ("book", {"seat": 2}), ("book", {"seat": 3}), FOUR, FOUR, DONE]
    played = play(world, answers, recover={"redundancy": SelectiveRedundancy()})
    assert played.bookings == {4: 1}
    strategies = [one.plan.strategy for one in played.session.recoveries]
    assert strategies == ["vote", "reprompt", "vote"]
    assert played.session.recoveries[0].outcome is RecoveryOutcome.REFUTED
    assert "did not agree" in told(played, 3)


@every
def test_other_models_vote_by_name(world: str) -> None:
    answers = {"own": [NINE, DONE], "large": [FOUR], "other": [FOUR]}
    played = play(world, answers, recover={"redundancy": SelectiveRedundancy(models=["large", "other"])})
    assert played.bookings == {4: 1}
    assert models(played) == ["own", "large", "other", "own"]
    assert played.session.recoveries[0].plan.strategy == "n_version"


@every
def test_a_model_that_fails_has_no_vote(world: str) -> None:
    answers = {"own": [FOUR, DONE], "large": [ConnectionError("down")], "other": [FOUR]}
    played = play(world, answers, recover={"redundancy": SelectiveRedundancy(models=["large", "other"])})
    assert played.bookings == {4: 1}
    assert models(played) == ["own", "large", "other", "own"]
    assert len(played.session.failures) == 1


@every
def test_the_first_alternate_that_is_accepted_is_taken(world: str) -> None:
    block = {"recovery_block": {"models": ["large", "other"], "prompts": ["Mind."], "temperatures": [0.5]}}
    answers = {"own": [("fly", {}), DONE], "large": [FOUR], "other": []}
    played = play(world, answers, recover={"on_fail": block})
    assert played.bookings == {4: 1}
    assert models(played) == ["own", "large", "own"]
    alternate = played.requests[1]
    assert (alternate.user_texts[-1], alternate.temperature) == ("Mind.", 0.5)
    assert "Mind." not in played.requests[2].user_texts, "what one candidate is told is told to it alone"


@every
def test_a_test_of_ones_own_accepts_or_refuses_each(world: str) -> None:
    def accept(run: Any) -> bool | str:
        return run.steps[-1].tool_calls[0].arguments["seat"] == 4 or "not the seat that was asked for"

    by = {"recovery_block": {"accept": accept, "tries": 3}}
    played = play(world, [NINE, NINE, FOUR, DONE], recover={"redundancy": SelectiveRedundancy(strategy=by)})
    assert played.bookings == {4: 1}
    assert len(played.requests) == 4
    good = play(world, [FOUR, DONE], recover={"redundancy": SelectiveRedundancy(strategy=by)})
    assert (good.bookings, len(good.requests), good.session.recoveries) == ({4: 1}, 2, [])


@every
def test_a_call_that_can_be_read_in_one_way_is_repaired_before_it_runs(world: str) -> None:
    played = play(world, [("book", {"seat": "4"}), DONE], recover={"on_fail": ["roll_forward", "stop"]})
    assert played.bookings == {4: 1}
    assert len(played.requests) == 2, "no model call is spent"
    assert "was repaired" in told(played)
    (recovery,) = played.session.recoveries
    assert (recovery.plan.strategy, recovery.plan.tier.name) == ("roll_forward", "REPAIR")
    (step,) = [step for step in played.session.run.steps if step.tool_calls]
    assert step.tool_calls[0].arguments == {"seat": 4}
    (change,) = step.extra["agentguard"]["repaired"]
    assert json.loads(change["original"]) == {"seat": "4"}
    assert json.loads(change["repaired"]) == {"seat": 4}


@every
def test_a_tool_in_another_writing_is_the_one_that_is_known(world: str) -> None:
    played = play(world, [("BOOK", {"Seat": 4}), DONE], recover={"on_fail": ["roll_forward", "stop"]})
    assert (played.bookings, len(played.requests)) == ({4: 1}, 2)


@every
def test_what_cannot_be_repaired_is_left_to_the_next_rung(world: str) -> None:
    answers = [("fly", {"seat": 4}), FOUR, DONE]
    played = play(world, answers, recover={"on_fail": ["roll_forward", "reprompt"]})
    assert played.bookings == {4: 1}
    assert [one.plan.strategy for one in played.session.recoveries] == ["reprompt"]


@every
def test_a_repair_of_ones_own_takes_the_place_of_a_result(world: str) -> None:
    def repair(run: Any, held: Any) -> tuple[str, str] | None:
        return ("observations[0]", "seat 4 is free") if run.steps[held.step].observations else None

    none = "nothing found"
    played = play(
        world,
        [FIND, FIND, FIND, FOUR, DONE],
        finds=[none, none, none],
        recover={"on_fail": "roll_forward"},
        repair=repair,
    )
    assert sorted(played.requests[3].tool_results) == [none, none, "seat 4 is free"]
    assert "put right" in told(played, 3)
    assert "seat 4 is free" in played.requests[4].tool_results, "it stays so"
    (recovery,) = played.session.recoveries
    step = played.session.run.steps[recovery.plan.step]
    assert step.observations[0].content == "seat 4 is free"
    assert step.extra["agentguard"]["repaired"][0]["original"] == none
    assert len(played.session.run.steps) == len(played.session.run.branches[0].steps) + recovery.plan.step + 2
    assert played.bookings == {4: 1}


@runs_tools
@pytest.mark.parametrize("broken", ["Error: timed out", "", '{"rows": [1, 2', ConnectionError("reset")])
def test_a_failed_read_is_made_once_more(world: str, broken: Any) -> None:
    played = play(world, [FIND, DONE], finds=[broken, "seat 4"], recover={"on_fail": "roll_forward"})
    assert played.find_count == 2
    assert played.requests[1].tool_results == ["seat 4"]
    assert "was called once more" in told(played)
    (recovery,) = played.session.recoveries
    assert (recovery.outcome, recovery.trigger) == (RecoveryOutcome.CONFIRMED, "tool_error")
    step = next(step for step in played.session.run.steps if step.observations)
    assert step.extra["agentguard"]["repaired"][0]["repaired"] == "seat 4"


@runs_tools
def test_a_read_that_fails_again_is_not_made_a_third_time(world: str) -> None:
    failed = "Error: timed out"
    played = play(world, [FIND, DONE], finds=[failed, failed, "seat 4"], recover={"on_fail": "roll_forward"})
    assert played.find_count == 2
    assert played.requests[1].tool_results == [failed]
    assert [one.outcome for one in played.session.recoveries] == [RecoveryOutcome.REFUTED]


@every
def test_an_agent_whose_turns_are_always_in_doubt_runs_out_of_budget(world: str) -> None:
    seats = [("book", {"seat": n}) for n in range(40)]
    played = play(
        world,
        [*seats[:20], DONE],
        recover={"redundancy": SelectiveRedundancy(on_fail="vote"), "budget": RecoveryBudget(resamples=5)},
    )
    assert played.session.account.usage.samples <= 5
    assert len(played.requests) == 21, "every answer was of use or was paid for out of the budget"
    assert played.session.pending_turn.skipped_votes > 10


@pytest.mark.parametrize("world", AWAITS)
def test_candidates_are_asked_for_side_by_side_where_they_are_awaited(world: str) -> None:
    by = {"vote": {"n": 5, "staged": False}}
    played = play(
        world, [FOUR, NINE, FOUR, FOUR, NINE, DONE], recover={"redundancy": SelectiveRedundancy(strategy=by)}
    )
    assert played.bookings == {4: 1}
    assert played.max_concurrent == 4


@every
def test_candidates_that_say_the_same_in_another_form_agree(world: str) -> None:
    text = ("book", {"seat": "4"})
    played = play(
        world,
        [NINE, text, FOUR, DONE],
        recover={"on_fail": "roll_forward", "redundancy": SelectiveRedundancy()},
    )
    assert played.bookings == {4: 1}
    assert len(played.requests) == 4
    assert "was repaired" in told(played)
