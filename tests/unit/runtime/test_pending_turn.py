"""Proposed turns in a session: votes, selective redundancy, repairs, and their record."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from agentguard import _sync_async
from agentguard.errors import RecoveryError
from agentguard.guard import Guard
from agentguard.localize.base import Diagnosis
from agentguard.recover.actions import Reject, Rewind, Sample, SendMessage
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.capabilities import Capabilities
from agentguard.recover.plan import RecoveryOutcome, RecoveryTier
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.recover.selective_redundancy import SelectiveRedundancy
from agentguard.runtime.session import ResolvedTurn, Session, resolve_turn
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec, Trajectory, Usage
from agentguard.verdict import Verdict

META = Trajectory(
    id="r",
    format="event_log",
    task="Find a seat by the aisle and book it.",
    steps=(),
    tools=(
        ToolSpec(name="find", parameters={"type": "object", "properties": {"where": {"type": "string"}}}),
        ToolSpec(
            name="book",
            parameters={
                "type": "object",
                "properties": {"seat": {"type": "integer"}, "note": {"type": "string"}},
                "required": ["seat"],
            },
        ),
    ),
)
CAN = Capabilities(reject=True, truncate=True, sample=True, repair=True)


class Judge:
    """A localizer with a constant failure probability."""

    name = "judge"

    def __init__(self, probability: float = 0.5) -> None:
        self.probability = probability

    def locate(self, trajectory: Trajectory, findings: Any) -> Diagnosis:
        return Diagnosis(
            trajectory_id=trajectory.id,
            method=self.name,
            verdict=Verdict.UNDECIDED,
            probability=self.probability,
        )


def begin(*, can: Capabilities = CAN, judge: float = 0.5, repair: Any = None, **recover: Any) -> Session:
    guard = Guard(localizer=Judge(judge), recover=RecoveryPolicy(**recover), repair=repair)
    guard.tool(effect="write", name="book")(len)
    guard.tool(effect="read", name="find")(len)
    session = guard.session(META, can)
    session.commit(Step(index=0, source=Source.USER, agent="user", content=META.task))
    return session


def call(name: str = "book", tokens: int = 100, **arguments: Any) -> Step:
    made = ToolCall(id="c", name=name, arguments=arguments)
    usage = Usage(prompt_tokens=tokens, completion_tokens=0)
    return Step(index=0, source=Source.AGENT, agent="clerk", tool_calls=(made,), usage=usage)


def done(turn: Step, text: str = "ok") -> Step:
    seen = Observation(content=text, call_id="c", tool=turn.tool_calls[0].name)
    return replace(turn, observations=(seen,))


def settle(session: Session, turn: Step, *others: Step | Exception) -> ResolvedTurn:
    """Return the result of an integration whose candidates are ``others``."""
    given = iter(others)

    def ask(_: Any) -> Step:
        one = next(given)
        if isinstance(one, Exception):
            raise one
        return one

    choice = _sync_async.run_sync(resolve_turn(session, turn, lambda one: one, lambda variant: variant), ask)
    assert next(given, None) is None, "more candidates were given than were asked for"
    return choice


def test_election_charges_all_candidates_but_the_chosen_turn() -> None:
    session = begin(redundancy=SelectiveRedundancy())
    choice = settle(session, call(seat=9, tokens=30), call(seat=4, tokens=50), call(seat=4, tokens=70))
    assert choice.turn.tool_calls[0].arguments == {"seat": 4}
    spent = session.account.usage
    assert (spent.samples, spent.calls, spent.tokens, spent.hints, spent.rollbacks) == (2, 2, 100, 0, 0)
    (recovery,) = session.recoveries
    assert (recovery.plan.tier, recovery.at_step, recovery.outcome) == (
        RecoveryTier.REJECT,
        1,
        RecoveryOutcome.PENDING,
    )
    assert [branch.reason for branch in session.run.branches] == ["vote: the vote did not select it"] * 2
    step = session.commit(done(choice.turn))
    assert step.extra["agentguard"]["elected"]["reason"] == "2 of 3 candidates agree, 2 were needed"


def test_election_is_confirmed_without_later_findings() -> None:
    session = begin(redundancy=SelectiveRedundancy())
    session.commit(done(settle(session, call(seat=4), call(seat=4)).turn))
    for where in ("aisle", "window", "front", "back"):
        turn = call("find", where=where)
        assert settle(session, turn).turn == turn
        session.commit(done(turn, f"seat in the {where}"))
    assert [recovery.outcome for recovery in session.recoveries] == [RecoveryOutcome.CONFIRMED]


def test_committed_step_is_rolled_back_and_replaced_by_vote() -> None:
    session = begin(on_fail="vote")
    for _ in range(3):
        session.commit(done(call("find", where="aisle"), "no seat"))
    plan = session.check_boundary()
    assert plan is not None
    assert [type(action) for action in plan.actions] == [Rewind, SendMessage, Sample]
    assert plan.tier is RecoveryTier.TRUNCATE
    again = call("find", where="aisle")
    other = call("find", where="front")
    choice = settle(session, again, other, other)
    assert choice.turn.tool_calls[0].arguments == {"where": "front"}
    strategies = [(one.plan.strategy, one.plan.tier) for one in session.recoveries]
    assert strategies == [("vote", RecoveryTier.TRUNCATE), ("vote", RecoveryTier.REJECT)]
    assert settle(session, call("find", where="back")).plan is None, "the turn after it is not voted on"


def test_candidates_predicted_to_fail_have_no_vote() -> None:
    session = begin(on_fail="vote")
    choice = settle(session, call("fly"), call("fly"), call("find", where="aisle"))
    assert choice.plan is None
    assert choice.turn.tool_calls[0].name == "fly", "no rung is left, and nothing was found by a majority"
    assert session.recoveries[0].outcome is RecoveryOutcome.REFUTED
    choice = settle(begin(on_fail="vote"), call("fly"), call("find", where="x"), call("find", where="x"))
    assert choice.turn.tool_calls[0].name == "find"


def test_plurality_is_chosen_without_quorum() -> None:
    session = begin(redundancy=SelectiveRedundancy(candidates=5, quorum=4, on_fail="hint"))
    seats = [call(seat=n) for n in (9, 4, 4, 4, 8)]
    choice = settle(session, *seats)
    assert choice.plan is None
    assert choice.turn.tool_calls[0].arguments == {"seat": 4}
    assert session.recoveries[0].outcome is RecoveryOutcome.REFUTED
    assert session.commit(done(choice.turn)).extra["agentguard"]["elected"]["votes"] == 3


def test_escalation_to_person_or_stop_may_end_the_vote() -> None:
    session = begin(redundancy=SelectiveRedundancy(on_fail=["stop"]))
    choice = settle(session, call(seat=1), call(seat=2), call(seat=3))
    assert choice.plan is not None
    assert session.stop_reason is not None
    assert "no more than 1 of 3 candidates agree" in session.stop_reason


def test_arguments_can_be_excluded_from_the_vote() -> None:
    by = {"vote": {"ignore": ["note"]}}
    session = begin(redundancy=SelectiveRedundancy(strategy=by))
    choice = settle(session, call(seat=4, note="by the aisle"), call(seat=4, note="as asked"))
    assert choice.turn.tool_calls[0].arguments == {"seat": 4, "note": "by the aisle"}


def test_unavailable_candidate_is_noted() -> None:
    session = begin(redundancy=SelectiveRedundancy())
    choice = settle(session, call(seat=4), ConnectionError("down"), call(seat=4))
    assert choice.turn.tool_calls[0].arguments == {"seat": 4}
    assert [failure.error for failure in session.failures] == ["ConnectionError"]
    assert session.account.usage.samples == 2


def test_unknown_outcome_of_last_step_makes_next_turn_risky() -> None:
    session = begin(redundancy=SelectiveRedundancy(effects=[], uncertainty_threshold=0.2))
    assert session.propose(call("find", where="aisle")) is None
    session.commit(done(call("find", where="aisle"), "Error: the service did not answer"))
    plan = session.propose(call("find", where="front"))
    assert plan is not None
    assert "uncertain" in plan.reason
    session.commit(done(call("find", where="front"), "seat 4 is free"))
    assert session.propose(call("find", where="back")) is None


@pytest.mark.parametrize(("probability", "sampled"), [(0.6, True), (0.3, False)])
def test_judge_can_mark_a_turn_as_risky(probability: float, sampled: bool) -> None:
    session = begin(
        judge=probability,
        redundancy=SelectiveRedundancy(effects=[], uncertainty_threshold=0.5, ask_localizer=True),
    )
    assert (session.propose(call("find", where="aisle")) is not None) is sampled


def test_turn_is_not_protected_without_sampling_capability() -> None:
    session = begin(can=replace(CAN, sample=False), redundancy=SelectiveRedundancy())
    assert session.propose(call(seat=4)) is None
    assert session.recoveries == []


def test_exhausted_budget_leaves_turns_unprotected() -> None:
    session = begin(redundancy=SelectiveRedundancy(), budget=RecoveryBudget(resamples=3))
    for seat in range(6):
        choice = settle(session, call(seat=seat), *([call(seat=seat)] if seat < 2 else []))
        session.commit(done(choice.turn))
    assert session.account.usage.samples == 2, "a third could not be followed by a fourth"
    assert (len(session.recoveries), session.pending_turn.skipped_votes) == (2, 4)


def test_exhausted_token_budget_leaves_turns_unprotected() -> None:
    session = begin(redundancy=SelectiveRedundancy(), budget=RecoveryBudget(extra_tokens=150))
    for seat in range(4):
        others = [call(seat=seat)] if seat < 2 else []
        session.commit(done(settle(session, call(seat=seat), *others).turn))
    assert session.account.usage.tokens == 200, "what the second cost was known only then"
    assert session.pending_turn.skipped_votes == 2


def test_only_open_election_can_be_counted() -> None:
    session = begin(redundancy=SelectiveRedundancy())
    plan = session.propose(call(seat=4))
    assert plan is not None
    assert session.count_votes(plan, [call(seat=4), call(seat=4)]).turn is not None
    with pytest.raises(RecoveryError, match="propose the turn first"):
        session.count_votes(plan, [call(seat=4)])
    session.propose(call(seat=5))
    with pytest.raises(RecoveryError, match="propose the turn first"):
        session.count_votes(plan, [call(seat=4)])


def test_repaired_turn_is_judged_again_and_reported_after_commit() -> None:
    session = begin(on_fail=["roll_forward", "reprompt"])
    choice = settle(session, call(seat="4"))
    assert choice.is_repaired
    assert choice.turn.tool_calls[0].arguments == {"seat": 4}
    assert session.account.usage.repairs == 1
    assert session.check_boundary() is None, "the turn is not committed yet"
    session.commit(done(choice.turn))
    plan = session.check_boundary()
    assert plan is not None
    assert [type(action) for action in plan.actions] == [SendMessage]
    assert session.check_boundary() is None, "it is told once"
    assert len(session.recoveries) == 1
    step = session.commit(done(call("find", where="aisle")))
    assert "was repaired" in step.extra["agentguard"]["told"][0]


def test_repaired_turn_may_be_voted_on() -> None:
    session = begin(on_fail="roll_forward", redundancy=SelectiveRedundancy())
    choice = settle(session, call(seat="4"), call(seat=4))
    assert choice.is_repaired
    assert choice.turn.tool_calls[0].arguments == {"seat": 4}
    assert [one.plan.strategy for one in session.recoveries] == ["roll_forward", "vote"]
    marks = session.commit(done(choice.turn)).extra["agentguard"]
    assert set(marks) == {"repaired", "elected"}


def test_equivalent_candidates_agree() -> None:
    session = begin(on_fail="roll_forward", redundancy=SelectiveRedundancy())
    choice = settle(session, call(seat=9), call(seat="4"), call(seat=4))
    assert (choice.is_repaired, choice.turn.tool_calls[0].arguments) == (True, {"seat": 4})
    assert choice.response.tool_calls[0].arguments == {"seat": "4"}
    marks = session.commit(done(choice.turn)).extra["agentguard"]
    assert marks["elected"]["taken"] == 1
    assert marks["repaired"] == [
        {"field": "tool_calls[0]", "original": '{"seat":"4"}', "repaired": '{"seat":4}'}
    ]
    plan = session.check_boundary()
    assert plan is not None, "the agent is told"
    strict = begin(redundancy=SelectiveRedundancy(on_fail="hint"))
    assert settle(strict, call(seat=9), call(seat="4"), call(seat=4)).turn.tool_calls[0].arguments == {
        "seat": 9
    }, "where nothing repairs calls, these are three answers"


def test_repair_of_a_refused_turn_is_discarded() -> None:
    session = begin(on_fail="roll_forward", redundancy=SelectiveRedundancy(on_fail="reprompt"))
    choice = settle(session, call(seat="4"), call(seat=5), call(seat=6))
    assert choice.plan is not None
    assert any(isinstance(action, Reject) for action in choice.plan.actions)
    good = call("find", where="aisle")
    assert settle(session, good).plan is None
    step = session.commit(done(good))
    assert "repaired" not in step.extra["agentguard"]
    assert session.check_boundary() is None


def test_same_repair_is_not_applied_twice_to_one_turn() -> None:
    calls = iter(("fly", "fly", "fly"))
    session = begin(on_fail="roll_forward", repair=lambda run, held: ("tool_calls[0].name", next(calls)))
    choice = settle(session, call("flee", where="x"))
    assert choice.plan is None
    assert len(session.recoveries) == 1
    assert choice.turn.tool_calls[0].name == "fly"


def test_number_of_repairs_is_bounded() -> None:
    session = begin(
        on_fail="roll_forward",
        repair=lambda run, held: ("tool_calls[0].name", run.steps[-1].tool_calls[0].name + "x"),
    )
    choice = settle(session, call("flee", where="x"))
    assert len(choice.turn.tool_calls[0].name) < 20
    assert len(session.recoveries) <= 8


def test_failed_repair_is_noted_and_run_continues() -> None:
    session = begin(on_fail="roll_forward", repair=lambda run, held: ("no such field", "x"))
    assert settle(session, call("flee", where="x")).plan is None
    assert [failure.error for failure in session.failures] == ["RecoveryError"]


def test_concurrent_requests_keep_their_order_and_failures() -> None:
    def body() -> _sync_async.SharedBody[list[Any]]:
        return (yield _sync_async.Gather((1, 0, 2)))

    async def divided(number: int) -> float:
        return 2 / number

    once = _sync_async.run_sync(body(), lambda number: 2 / number)
    awaited = asyncio.run(_sync_async.run_async(body(), divided))
    for given in (once, awaited):
        assert [given[0], given[2]] == [2, 1]
        assert isinstance(given[1], ZeroDivisionError)
