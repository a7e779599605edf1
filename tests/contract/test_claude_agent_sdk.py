"""The hooks of the Claude Agent SDK guard its real process; the tests need `claude-agent-sdk`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentguard.guard import Guard
from agentguard.recover.capabilities import Capabilities
from agentguard.recover.effect_store import EffectState
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.testing.contracts.integrations import CHECKS, ContractRun
from agentguard.testing.guard_check import build_scenarios, run_guard_check
from tests.contract.claude_agent_driver import PREFIX, claude_agent_query, claude_agent_sdk
from tests.support.guard_check import INSISTENT_NAMES, list_harmful_names

pytest.importorskip("claude_agent_sdk")

_NAMES = {
    "direct/2/declared",
    "unknown_tool/2/0/undeclared",
    "transient/2/HTTP 50/declared",
    "polling/3/the search i/undeclared",
    "parallel/read_and_booking/2/declared",
    "wanted_repetition/2/repeatable/declared",
    "repeated_booking/2/book/1/declared",
    "double_booking/1/2/declared",
    "false_claim/I have/seat 4 i/1/declared",
    "loop/nothing /1/undeclared",
    "wrong_argument/711/1/declared",
}


def test_default_guard_breaks_no_scripted_run() -> None:
    sample = [one for one in build_scenarios() if one.name in _NAMES]
    report = run_guard_check(claude_agent_sdk, sample, lambda: Guard(localizer="first_finding"))
    assert len(report.comparisons) == len(_NAMES)
    assert report.to_dict()["broken"] == []
    assert report.compute_call_growth() <= 0.05
    assert list_harmful_names(report) <= INSISTENT_NAMES
    outcomes = {one.scenario.name: one.outcome.value for one in report.comparisons}
    rescued = [name for name, outcome in outcomes.items() if outcome == "rescued"]
    assert {"repeated_booking/2/book/1/declared", "false_claim/I have/seat 4 i/1/declared"} <= set(rescued)


def play(guard: Guard, *answers: Any) -> ContractRun:
    """Run the SDK's process with scripted answers of the model."""
    run = ContractRun({"own": list(answers)})
    claude_agent_sdk(guard, run)
    return run


def test_repeated_charge_is_denied_with_its_earlier_result() -> None:
    guard = Guard(localizer="first_finding")
    guard.tool(effect="destructive", name=f"{PREFIX}book")(len)
    run = play(guard, ("book", {"seat": 4}), ("book", {"seat": 4}), "Seat 4 is booked.")
    assert run.bookings == {4: 1}
    denial = next(text for text in run.requests[-1].user_texts if "[guard]" in text)
    assert 'book({"seat":4}) returned seat 4 is yours' in denial
    assert [one.trigger for one in run.session.recoveries] == ["repeated_call"]
    assert run.session.has_ended


def test_turn_is_recorded_with_its_results() -> None:
    run = play(Guard(localizer="first_finding"), [("find", {"where": "a"}), ("book", {"seat": 4})], "Done.")
    _, turn, last = run.session.run.steps
    assert [call.name for call in turn.tool_calls] == [f"{PREFIX}find", f"{PREFIX}book"]
    assert turn.observations[1].content == "seat 4 is yours"
    assert last.content == "Done."
    (effect,) = [one for one in run.session.ledger.effects() if one.tool == f"{PREFIX}book"]
    assert effect.state is EffectState.DONE


def test_call_that_a_hook_of_the_user_denies_has_no_effect() -> None:
    async def deny(given: Any, *_: Any) -> Any:
        output = {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": "no",
        }
        return {"hookSpecificOutput": output} if given["tool_name"].endswith("book") else {}

    run = ContractRun({"own": [("book", {"seat": 4}), "Nothing was booked."]})
    claude_agent_sdk(Guard(localizer="first_finding"), run, denial=deny)
    assert run.bookings == {}
    assert run.session.ledger.list_active() == ()


def test_person_approves_a_repeated_call() -> None:
    questions = []

    async def ask(question: str) -> str:
        questions.append(question)
        await asyncio.sleep(0)
        return "yes"

    guard = Guard(localizer="first_finding")
    guard.tool(effect="destructive", name=f"{PREFIX}book")(len)
    again = ("book", {"seat": 4})
    run = ContractRun({"own": [again, again, again, again, "Seat 4 is booked twice."]})
    claude_agent_sdk(guard, run, ask=ask)
    assert run.bookings == {4: 2}
    assert len(questions) == 1
    assert run.session.capabilities == Capabilities(reject=True, escalate=True)


@pytest.mark.parametrize(("on_guard_error", "bookings"), [("fail_open", {4: 1}), ("fail_closed", {})])
def test_failure_of_the_guard_follows_the_policy(
    on_guard_error: Any, bookings: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentguard.runtime.session import Session

    def fail(*_: Any) -> None:
        raise OSError("the store is gone")

    monkeypatch.setattr(Session, "begin_tool", fail)
    guard = Guard(localizer="first_finding", recover=RecoveryPolicy(on_guard_error=on_guard_error))
    run = play(guard, ("book", {"seat": 4}), "Done.")
    assert run.bookings == bookings


_OTHER_IN_THE_SDK = {
    "check_healthy_run_unchanged": "the names of tools have the prefix of their server",
    "check_rejected_call_not_executed": "the SDK calls no hook before the call of an unknown tool",
    "check_effect_executed_once": "before the first turn, the correction is a part of the task's message",
}


@pytest.mark.parametrize(
    "check",
    [one for one in CHECKS if one.__name__ not in _OTHER_IN_THE_SDK],
    ids=lambda check: check.__name__,
)
def test_query_with_rollback_satisfies_the_contract(check: Any) -> None:
    check(claude_agent_query)


def play_query(policy: RecoveryPolicy, *answers: Any) -> ContractRun:
    """Run the query with rollbacks; `find` finds nothing."""
    run = ContractRun({"own": list(answers)}, ["nothing found"] * 20)
    guard = Guard(localizer="first_finding", recover=policy)
    guard.tool(effect="write")(run.book)
    guard.tool(effect="read")(run.find)
    claude_agent_query(guard, run)
    return run


def test_rollback_removes_turns_from_the_requests_and_keeps_the_earlier_ones() -> None:
    answers = [("book", {"seat": 4}), *[("find", {"where": "aisle"})] * 3, "There is none."]
    run = play_query(RecoveryPolicy(on_fail="rollback"), *answers)
    assert [len(request.tool_results) for request in run.requests] == [0, 1, 2, 3, 2]
    assert "rolled back to this point" in run.requests[-1].user_texts[-1]
    assert (run.answer, run.bookings, len(run.sessions)) == ("There is none.", {4: 1}, 1)
    assert [branch.fork_step for branch in run.session.run.branches] == [3]
    assert run.session.has_ended


def test_restart_begins_another_conversation_with_the_failure_in_its_task() -> None:
    answers = [*[("find", {"where": "aisle"})] * 3, "There is none."]
    run = play_query(RecoveryPolicy(on_fail="restart"), *answers)
    assert [one.plan.strategy for one in run.session.recoveries] == ["restart"]
    assert run.requests[-1].tool_results == []
    assert "repeated the call" in run.requests[-1].user_texts[-1]
    assert len(run.sessions) == 1
