"""Contract of every integration that can sample and repair: votes, alternates, repairs, their cost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentguard.guard import Guard
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.plan import RecoveryOutcome
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.recover.selective_redundancy import SelectiveRedundancy
from tests.contract.candidate_drivers import AWAITS, DRIVERS, RUNS_TOOLS, ContractRun

every = pytest.mark.parametrize("driver", DRIVERS)
runs_tools = pytest.mark.parametrize("driver", RUNS_TOOLS)
NINE, FOUR = ("book", {"seat": 9}), ("book", {"seat": 4})
FIND, DONE = ("find", {"where": "aisle"}), "Seat 4 is booked."


def play(driver: str, answers: Any, *, finds: Any = (), **parts: Any) -> ContractRun:
    script = answers if isinstance(answers, dict) else {"own": answers}
    played = ContractRun({name: list(given) for name, given in script.items()}, find_results=list(finds))
    recover = RecoveryPolicy(**{"on_fail": "hint", **parts.pop("recover", {})})
    guard = Guard(recover=recover, **{"localizer": Nothing(), **parts})
    guard.tool(effect="write")(played.book)
    guard.tool(effect="read")(played.find)
    DRIVERS[driver](guard, played)
    return played


class Nothing:
    """Localizer without results, so that only findings count."""

    name = "nothing"

    def locate(self, trajectory: Any, findings: Any) -> Any:
        from agentguard.localize.base import Diagnosis
        from agentguard.verdict import Verdict

        return Diagnosis(
            trajectory_id=trajectory.id, method=self.name, verdict=Verdict.UNDECIDED, probability=0.5
        )


def models(played: ContractRun) -> list[str]:
    return [asked.model for asked in played.requests]


def told(played: ContractRun, at: int = -1) -> str:
    return " ".join(text for text in played.requests[at].user_texts if text.startswith("[guard]"))


@every
def test_outvoted_call_is_never_executed(driver: str) -> None:
    played = play(driver, [NINE, FOUR, FOUR, DONE], recover={"redundancy": SelectiveRedundancy()})
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
def test_only_protected_turns_are_sampled_until_decided(driver: str) -> None:
    played = play(driver, [FIND, FOUR, FOUR, DONE], recover={"redundancy": SelectiveRedundancy()})
    assert played.bookings == {4: 1}
    assert len(played.requests) == 4, "the find and the end are asked for once, the booking twice"
    assert played.session.recoveries[0].cost["calls"] == 1


@every
def test_missing_agreement_escalates(driver: str) -> None:
    answers = [("book", {"seat": 1}), ("book", {"seat": 2}), ("book", {"seat": 3}), FOUR, FOUR, DONE]
    played = play(driver, answers, recover={"redundancy": SelectiveRedundancy()})
    assert played.bookings == {4: 1}
    strategies = [one.plan.strategy for one in played.session.recoveries]
    assert strategies == ["vote", "reprompt", "vote"]
    assert played.session.recoveries[0].outcome is RecoveryOutcome.REFUTED
    assert "did not agree" in told(played, 3)


@every
def test_other_models_vote_by_name(driver: str) -> None:
    answers = {"own": [NINE, DONE], "large": [FOUR], "other": [FOUR]}
    played = play(driver, answers, recover={"redundancy": SelectiveRedundancy(models=["large", "other"])})
    assert played.bookings == {4: 1}
    assert models(played) == ["own", "large", "other", "own"]
    assert played.session.recoveries[0].plan.strategy == "n_version"


@every
def test_failed_model_has_no_vote(driver: str) -> None:
    answers = {"own": [FOUR, DONE], "large": [ConnectionError("down")], "other": [FOUR]}
    played = play(driver, answers, recover={"redundancy": SelectiveRedundancy(models=["large", "other"])})
    assert played.bookings == {4: 1}
    assert models(played) == ["own", "large", "other", "own"]
    assert len(played.session.failures) == 1


@every
def test_first_accepted_alternate_is_used(driver: str) -> None:
    block = {"recovery_block": {"models": ["large", "other"], "prompts": ["Mind."], "temperatures": [0.5]}}
    answers = {"own": [("fly", {}), DONE], "large": [FOUR], "other": []}
    played = play(driver, answers, recover={"on_fail": block})
    assert played.bookings == {4: 1}
    assert models(played) == ["own", "large", "own"]
    alternate = played.requests[1]
    assert (alternate.user_texts[-1], alternate.temperature) == ("Mind.", 0.5)
    assert "Mind." not in played.requests[2].user_texts, "what one candidate is told is told to it alone"


@every
def test_custom_acceptance_test_judges_each_candidate(driver: str) -> None:
    def accept(run: Any) -> bool | str:
        return run.steps[-1].tool_calls[0].arguments["seat"] == 4 or "not the seat that was asked for"

    by = {"recovery_block": {"accept": accept, "tries": 3}}
    played = play(driver, [NINE, NINE, FOUR, DONE], recover={"redundancy": SelectiveRedundancy(strategy=by)})
    assert played.bookings == {4: 1}
    assert len(played.requests) == 4
    good = play(driver, [FOUR, DONE], recover={"redundancy": SelectiveRedundancy(strategy=by)})
    assert (good.bookings, len(good.requests), good.session.recoveries) == ({4: 1}, 2, [])


@every
def test_unambiguous_call_is_repaired_before_execution(driver: str) -> None:
    played = play(driver, [("book", {"seat": "4"}), DONE], recover={"on_fail": ["roll_forward", "stop"]})
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
def test_tool_name_in_another_notation_is_repaired(driver: str) -> None:
    played = play(driver, [("BOOK", {"Seat": 4}), DONE], recover={"on_fail": ["roll_forward", "stop"]})
    assert (played.bookings, len(played.requests)) == ({4: 1}, 2)


@every
def test_unrepairable_call_escalates(driver: str) -> None:
    answers = [("fly", {"seat": 4}), FOUR, DONE]
    played = play(driver, answers, recover={"on_fail": ["roll_forward", "reprompt"]})
    assert played.bookings == {4: 1}
    assert [one.plan.strategy for one in played.session.recoveries] == ["reprompt"]


@every
def test_custom_repair_replaces_result(driver: str) -> None:
    def repair(run: Any, held: Any) -> tuple[str, str] | None:
        return ("observations[0]", "seat 4 is free") if run.steps[held.step].observations else None

    none = "nothing found"
    played = play(
        driver,
        [FIND, FIND, FIND, FOUR, DONE],
        finds=[none, none, none],
        recover={"on_fail": "roll_forward"},
        repair=repair,
    )
    assert sorted(played.requests[3].tool_results) == [none, none, "seat 4 is free"]
    assert "has been corrected" in told(played, 3)
    assert "seat 4 is free" in played.requests[4].tool_results, "it stays so"
    (recovery,) = played.session.recoveries
    step = played.session.run.steps[recovery.plan.step]
    assert step.observations[0].content == "seat 4 is free"
    assert step.extra["agentguard"]["repaired"][0]["original"] == none
    assert len(played.session.run.steps) == len(played.session.run.branches[0].steps) + recovery.plan.step + 2
    assert played.bookings == {4: 1}


@runs_tools
@pytest.mark.parametrize("broken", ["Error: timed out", "", '{"rows": [1, 2', ConnectionError("reset")])
def test_failed_read_is_retried_once(driver: str, broken: Any) -> None:
    played = play(driver, [FIND, DONE], finds=[broken, "seat 4"], recover={"on_fail": "roll_forward"})
    assert played.find_count == 2
    assert played.requests[1].tool_results == ["seat 4"]
    assert "It was repeated" in told(played)
    (recovery,) = played.session.recoveries
    assert (recovery.outcome, recovery.trigger) == (RecoveryOutcome.CONFIRMED, "tool_error")
    assert "fault_model:soft_error" in recovery.plan.codes
    step = next(step for step in played.session.run.steps if step.observations)
    assert step.extra["agentguard"]["repaired"][0]["repaired"] == "seat 4"


@runs_tools
def test_read_is_not_attempted_a_third_time(driver: str) -> None:
    failed = "Error: timed out"
    played = play(driver, [FIND, DONE], finds=[failed, failed, "seat 4"], recover={"on_fail": "roll_forward"})
    assert played.find_count == 2
    assert played.requests[1].tool_results == [failed]
    assert [one.outcome for one in played.session.recoveries] == [RecoveryOutcome.REFUTED]


@every
def test_permanently_risky_agent_exhausts_budget(driver: str) -> None:
    seats = [("book", {"seat": n}) for n in range(40)]
    played = play(
        driver,
        [*seats[:20], DONE],
        recover={"redundancy": SelectiveRedundancy(on_fail="vote"), "budget": RecoveryBudget(resamples=5)},
    )
    assert played.session.account.usage.samples <= 5
    assert len(played.requests) == 21, "every answer was of use or was paid for out of the budget"
    assert played.session.pending_turn.skipped_votes > 10


@pytest.mark.parametrize("driver", AWAITS)
def test_awaited_candidates_are_requested_concurrently(driver: str) -> None:
    by = {"vote": {"n": 5, "staged": False}}
    played = play(
        driver, [FOUR, NINE, FOUR, FOUR, NINE, DONE], recover={"redundancy": SelectiveRedundancy(strategy=by)}
    )
    assert played.bookings == {4: 1}
    assert played.max_concurrent == 4


@every
def test_equivalent_candidates_agree(driver: str) -> None:
    text = ("book", {"seat": "4"})
    played = play(
        driver,
        [NINE, text, FOUR, DONE],
        recover={"on_fail": "roll_forward", "redundancy": SelectiveRedundancy()},
    )
    assert played.bookings == {4: 1}
    assert len(played.requests) == 4
    assert "was repaired" in told(played)
