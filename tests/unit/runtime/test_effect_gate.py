"""Calls of undeclared and destructive tools are judged before they run; doubtful ones are not repeated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from agentguard.errors import ConfigError
from agentguard.guard import Guard
from agentguard.recover.actions import Escalate
from agentguard.recover.capabilities import Capabilities
from agentguard.recover.effect_ledger import ExecutionDecision
from agentguard.recover.effect_store import EffectState
from agentguard.recover.plan import RecoveryOutcome
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.runtime.session import Session
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec, Trajectory

AMOUNT = {"type": "object", "properties": {"amount": {"type": "integer"}, "to": {"type": "string"}}}
META = Trajectory(
    id="r",
    format="event_log",
    task="Send 10 to Ann.",
    steps=(),
    tools=(
        ToolSpec(name="transfer", parameters=AMOUNT),
        ToolSpec(name="weather", parameters=AMOUNT),
        ToolSpec(name="get_rate", parameters=AMOUNT),
    ),
)
CAN = Capabilities(reject=True, truncate=True)


def begin(
    *,
    can: Capabilities = CAN,
    effect: str | None = None,
    policy: RecoveryPolicy | None = None,
    **declaration: Any,
) -> Session:
    guard = Guard(localizer="first_finding", recover=policy or RecoveryPolicy())
    if effect is not None:
        guard.tool(effect=effect, name="transfer", **declaration)(lambda: None)
    session = guard.session(META, can)
    session.commit(Step(index=0, source=Source.USER, agent="user", content=META.task))
    return session


def turn(tool: str = "transfer", result: str | None = None, **arguments: Any) -> Step:
    call = ToolCall(id="c", name=tool, arguments=arguments or {"amount": 1000, "to": "Ann"})
    seen = () if result is None else (Observation(content=result, call_id="c", tool=tool),)
    return Step(index=0, source=Source.AGENT, agent="clerk", tool_calls=(call,), observations=seen)


def test_wrong_value_for_destructive_tool_is_refused_and_stops_the_run_if_repeated() -> None:
    session = begin(effect="destructive")
    plan = session.propose(turn())
    assert plan is not None
    assert plan.strategy == "reprompt"
    assert "None of its tool calls ran" in session.pending_messages[0]
    assert session.propose(turn()) is not None
    assert session.stop_reason is not None


def test_person_decides_on_repeated_refused_call() -> None:
    session = begin(can=Capabilities(reject=True, escalate=True), effect="destructive")
    session.propose(turn())
    plan = session.propose(turn())
    assert plan is not None
    assert (plan.strategy, session.stop_reason) == ("escalate", None)


def test_repeated_call_of_undeclared_tool_runs() -> None:
    session = begin()
    assert session.propose(turn("weather")) is not None
    assert session.propose(turn("weather")) is None
    assert session.stop_reason is None


@pytest.mark.parametrize("tool", ["get_rate", "fly"])
def test_suspicion_about_read_or_unknown_tool_refuses_nothing(tool: str) -> None:
    session = begin()
    session.propose(turn(tool))
    assert not any(one.plan.strategy == "reprompt" for one in session.recoveries)


def test_schema_breach_never_reaches_a_destructive_tool() -> None:
    session = begin(effect="destructive")
    plans = [session.propose(turn(amount=amount, to="Ann")) for amount in ("ten", "many", "a", "b", "c")]
    assert [plan and plan.strategy for plan in plans] == ["reprompt"] * 5
    assert session.stop_reason is None
    assert session.propose(turn(amount="d", to="Ann")) is not None
    assert session.stop_reason is not None


def test_call_with_a_corrected_type_runs_after_several_refusals() -> None:
    session = begin(effect="destructive")
    for _ in range(3):
        assert session.propose(turn(amount="ten", to="Ann")) is not None
    assert "amount must be of type integer" in session.pending_messages[0]
    assert session.propose(turn(amount=10, to="Ann")) is None


def test_correct_call_of_destructive_tool_runs() -> None:
    session = begin(effect="destructive")
    assert session.propose(turn(amount=10, to="Ann")) is None


def attempt(session: Session, error: str, *, has_failed: bool | None = True) -> ExecutionDecision:
    arguments = {"amount": 10, "to": "Ann"}
    claim = session.begin_tool("transfer", arguments)
    if claim.decision is ExecutionDecision.RUN:
        session.end_tool(claim, error, has_failed=has_failed)
    session.commit(turn(result=error, **arguments))
    return claim.decision


@pytest.mark.parametrize("effect", ["write", "destructive", None])
def test_call_that_timed_out_is_not_repeated(effect: str | None) -> None:
    session = begin(effect=effect)
    assert attempt(session, "TimeoutError: no answer") is ExecutionDecision.RUN
    decisions = {attempt(session, "not run") for _ in range(5)}
    assert decisions == {ExecutionDecision.OUTCOME_UNKNOWN}


def test_idempotent_call_that_timed_out_is_repeated() -> None:
    session = begin(effect="write", idempotent=True)
    attempt(session, "TimeoutError: no answer")
    assert attempt(session, "sent", has_failed=None) is ExecutionDecision.RUN


@pytest.mark.parametrize(
    ("reconcile", "decision", "states"),
    [
        (lambda **_: "sent", ExecutionDecision.REUSE, {EffectState.RECONCILED}),
        (lambda **_: None, ExecutionDecision.RUN, {EffectState.DONE}),
        (lambda **_: 1 / 0, ExecutionDecision.OUTCOME_UNKNOWN, {EffectState.AMBIGUOUS}),
    ],
    ids=["took effect", "no effect", "fails"],
)
def test_reconcile_function_decides_on_unknown_outcome(
    reconcile: Callable[..., Any], decision: ExecutionDecision, states: set[EffectState]
) -> None:
    session = begin(effect="destructive", reconcile=reconcile)
    attempt(session, "TimeoutError: no answer")
    assert attempt(session, "sent", has_failed=None) is decision
    assert {effect.state for effect in session.ledger.effects()} == states


@pytest.mark.parametrize("effect", ["write", "destructive"])
@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: the ledger broke off",
        "OSError: [Errno 5] Input/output error",
        "JSONDecodeError: line 1 column 1",
        "HTTP 500 Internal Server Error",
    ],
)
def test_error_that_breaks_a_declared_acting_tool_off_is_ambiguous(error: str, effect: str) -> None:
    session = begin(effect=effect)
    assert attempt(session, error) is ExecutionDecision.RUN
    assert [one.state for one in session.ledger.effects()] == [EffectState.AMBIGUOUS]
    assert attempt(session, "not run") is ExecutionDecision.OUTCOME_UNKNOWN


@pytest.mark.parametrize(
    ("effect", "error"),
    [
        ("destructive", "RuntimeError: the account does not exist"),
        ("destructive", "HTTPError: 409 Conflict"),
        ("destructive", "InsufficientFunds: 3 of 10"),
        ("write", "Exit code: 1"),
        (None, "RuntimeError: the ledger broke off"),
    ],
)
def test_error_without_doubt_lets_the_call_run_again(effect: str | None, error: str) -> None:
    session = begin(effect=effect)
    attempt(session, error)
    assert attempt(session, "sent", has_failed=None) is ExecutionDecision.RUN


@pytest.mark.parametrize("has_failed", [None, True])
@pytest.mark.parametrize("error", ["Error: no money", "HTTP 503 Service Unavailable"])
def test_result_that_shows_an_error_is_no_effect(error: str, has_failed: bool | None) -> None:
    session = begin(effect="destructive")
    attempt(session, error, has_failed=has_failed)
    assert session.ledger.list_active() == ()
    assert attempt(session, "sent", has_failed=None) is ExecutionDecision.RUN


def test_call_of_unknown_tool_is_no_effect() -> None:
    session = begin()
    claim = session.begin_tool("fly", {})
    session.end_tool(claim, "fly is not a valid tool")
    assert session.ledger.list_active() == ()


def test_undeclared_call_with_unknown_outcome_runs_after_two_refusals() -> None:
    session = begin()
    first = session.begin_tool("weather", {})
    session.end_tool(first, "the request timed out", has_failed=True)
    session.commit(turn("weather", "the request timed out"))
    decisions = [session.begin_tool("weather", {}).decision for _ in range(3)]
    assert decisions == [
        ExecutionDecision.OUTCOME_UNKNOWN,
        ExecutionDecision.OUTCOME_UNKNOWN,
        ExecutionDecision.RUN,
    ]


def test_equal_calls_of_one_turn_both_run() -> None:
    session = begin(effect="write")
    claims = [session.begin_tool("transfer", {"amount": 1}) for _ in range(2)]
    assert [claim.decision for claim in claims] == [ExecutionDecision.RUN] * 2


def pair(*arguments: dict[str, Any], tool: str = "transfer") -> Step:
    calls = tuple(
        ToolCall(id=f"c{place}", name=tool, arguments=given) for place, given in enumerate(arguments)
    )
    return Step(index=0, source=Source.AGENT, agent="clerk", tool_calls=calls)


TEN = {"amount": 10, "to": "Ann"}


def test_equal_calls_of_undeclared_tool_in_one_turn_are_refused_once() -> None:
    session = begin()
    plan = session.propose(pair(TEN, TEN, tool="weather"))
    assert plan is not None
    assert plan.strategy == "reprompt"
    assert "weather twice with the same arguments" in session.pending_messages[0]
    assert "after the result of the first one" in session.pending_messages[0]
    assert session.propose(pair(TEN, TEN, tool="weather")) is None


def test_equal_calls_of_undeclared_tool_with_irreversible_name_never_run() -> None:
    session = begin()
    assert session.propose(pair(TEN, TEN)) is not None
    assert session.propose(pair(TEN, TEN)) is not None
    assert session.stop_reason is not None


def test_equal_calls_of_destructive_tool_in_one_turn_never_run() -> None:
    session = begin(effect="destructive")
    assert session.propose(pair(TEN, {"amount": "10", "to": "Ann"})) is not None
    assert session.propose(pair(TEN, TEN)) is not None
    assert session.stop_reason is not None


def begin_with_task(task: str, *, can: Capabilities = CAN) -> Session:
    guard = Guard(localizer="first_finding")
    guard.tool(effect="destructive", name="transfer")(lambda: None)
    session = guard.session(replace(META, task=task), can)
    session.commit(Step(index=0, source=Source.USER, agent="user", content=task))
    return session


def test_equal_calls_that_the_user_has_asked_for_run_if_the_agent_repeats_them() -> None:
    session = begin_with_task("Make two transfers of 10 to Ann.")
    assert session.propose(pair(TEN, TEN)) is not None
    assert session.propose(pair(TEN, TEN)) is None
    claims = [session.begin_tool("transfer", TEN) for _ in range(2)]
    assert [claim.decision for claim in claims] == [ExecutionDecision.RUN] * 2


def test_more_equal_calls_than_the_user_has_asked_for_never_run() -> None:
    session = begin_with_task("Make two transfers of 10 to Ann.")
    assert session.propose(pair(TEN, TEN, TEN)) is not None
    assert session.propose(pair(TEN, TEN, TEN)) is not None
    assert session.stop_reason is not None


def test_person_decides_on_equal_calls_that_the_user_has_asked_for() -> None:
    session = begin_with_task("Make two transfers of 10 to Ann.", can=replace(CAN, escalate=True))
    session.propose(pair(TEN, TEN))
    plan = session.propose(pair(TEN, TEN))
    assert plan is not None
    assert any(isinstance(action, Escalate) for action in plan.actions)


def test_single_call_after_refused_pair_runs() -> None:
    session = begin(effect="destructive")
    session.propose(pair(TEN, TEN))
    assert session.propose(pair(TEN)) is None
    assert session.stop_reason is None


@pytest.mark.parametrize(
    ("turn_of_calls", "declaration"),
    [
        (pair(TEN, {"amount": 10, "to": "Bob"}), {"effect": "destructive"}),
        (pair(TEN, TEN), {"effect": "write"}),
        (pair(TEN, TEN), {"effect": "destructive", "idempotent": True}),
        (pair(TEN, TEN), {"effect": "destructive", "idempotency_key": "to"}),
        (pair(TEN, TEN, tool="get_rate"), {}),
        (pair({}, {}, tool="fly"), {}),
    ],
    ids=["other arguments", "write", "idempotent", "key", "read", "unknown tool"],
)
def test_calls_that_may_be_equal_are_no_duplicates(turn_of_calls: Step, declaration: dict[str, Any]) -> None:
    session = begin(**declaration)
    session.propose(turn_of_calls)
    assert not any(one.trigger == "duplicate_call" for one in session.recoveries)


def execute(session: Session, call: Step, result: str = "sent, receipt 7") -> None:
    """Run the calls of a turn and commit it."""
    for one in call.tool_calls:
        session.end_tool(session.begin_tool(one.name, one.arguments or {}), result)
    seen = tuple(Observation(content=result, call_id=one.id, tool=one.name) for one in call.tool_calls)
    session.commit(replace(call, observations=seen))


@pytest.mark.parametrize("effect", ["destructive", None])
def test_successful_call_is_repeated_only_at_the_second_request(effect: str | None) -> None:
    session = begin(effect=effect)
    execute(session, pair(TEN))
    plan = session.propose(pair({"to": "Ann", "amount": 10.0}))
    assert plan is not None
    assert (plan.strategy, session.recoveries[-1].trigger) == ("reprompt", "repeated_call")
    assert (
        'at step 1: transfer({"amount":10,"to":"Ann"}) returned sent, receipt 7.'
        in (session.pending_messages[0])
    )
    assert session.propose(pair(TEN)) is None
    assert session.propose(pair(TEN)) is None, "a call is held once"


def test_held_call_runs_although_other_turns_lie_between() -> None:
    session = begin(effect="destructive")
    execute(session, pair(TEN))
    assert session.propose(pair(TEN)) is not None
    execute(session, pair(TEN, tool="get_rate"), "2 %")
    assert session.propose(pair(TEN)) is None


def test_second_call_after_refused_pair_runs() -> None:
    session = begin(effect="destructive")
    session.propose(pair(TEN, TEN))
    execute(session, pair(TEN))
    assert session.propose(pair(TEN)) is None, "the guard asked for the second call"


@pytest.mark.parametrize(
    ("declaration", "result"),
    [
        ({"effect": "destructive", "repeatable": True}, "sent"),
        ({"effect": "destructive", "idempotent": True}, "sent"),
        ({"effect": "destructive", "idempotency_key": "to"}, "sent"),
        ({"effect": "write"}, "sent"),
        ({}, "The person refused the call."),
        ({"effect": "destructive"}, "card declined"),
        ({"effect": "destructive"}, '{"status": "pending"}'),
        ({"effect": "destructive"}, ""),
    ],
    ids=["repeatable", "idempotent", "key", "write", "refused", "declined", "pending", "empty"],
)
def test_call_that_may_be_repeated_is_not_held(declaration: dict[str, Any], result: str) -> None:
    session = begin(**declaration)
    execute(session, pair(TEN), result)
    assert session.propose(pair(TEN)) is None


def test_repeatable_tool_may_be_called_twice_in_one_turn() -> None:
    session = begin(effect="destructive", repeatable=True)
    assert session.propose(pair(TEN, TEN)) is None


def test_call_after_a_new_instruction_of_the_user_is_not_held() -> None:
    session = begin(effect="destructive")
    execute(session, pair(TEN))
    session.commit(Step(index=0, source=Source.USER, agent="user", content="Send 10 to Ann again."))
    assert session.propose(pair(TEN)) is None


@pytest.mark.parametrize(("effect", "is_held"), [("destructive", True), (None, False)])
def test_action_between_equal_calls_exempts_an_undeclared_tool(effect: str | None, is_held: bool) -> None:
    session = begin(effect=effect)
    execute(session, pair(TEN))
    execute(session, pair(TEN, tool="weather"))
    assert (session.propose(pair(TEN)) is not None) is is_held


def test_undeclared_tool_without_a_name_of_a_new_effect_is_not_held() -> None:
    session = begin()
    execute(session, pair(TEN, tool="weather"))
    assert session.propose(pair(TEN, tool="weather")) is None


def test_policy_may_stop_a_repeated_call() -> None:
    policy = RecoveryPolicy(escalations={"repeated_call": ["reprompt", "stop"]})
    session = begin(effect="destructive", policy=policy)
    execute(session, pair(TEN))
    session.propose(pair(TEN))
    assert "a repetition will not run" in session.pending_messages[0]
    assert session.propose(pair(TEN)) is not None
    assert session.stop_reason is not None


PERSON = Capabilities(reject=True, truncate=True, escalate=True)


def test_person_approves_a_repeated_call_once() -> None:
    session = begin(can=PERSON, effect="destructive")
    execute(session, pair(TEN))
    session.propose(pair(TEN))
    plan = session.propose(pair(TEN))
    assert plan is not None
    question = next(action.question for action in plan.actions if isinstance(action, Escalate))
    assert 'The agent requests transfer({"amount":10,"to":"Ann"}). Answer "yes"' in question
    assert "approved" in session.record_person_answer("Yes, go ahead.")
    assert session.propose(pair(TEN)) is None
    execute(session, pair(TEN))
    assert session.propose(pair(TEN)) is not None, "a third call needs another approval"


@pytest.mark.parametrize(
    "answer", ["Yes, but only 10.", "ok, cancel it", "sure? no", "Confirm with Ann first."]
)
def test_answer_with_a_further_instruction_approves_no_call(answer: str) -> None:
    session = begin(can=PERSON, effect="destructive")
    execute(session, pair(TEN))
    session.propose(pair(TEN))
    session.propose(pair(TEN))
    assert "did not approve" in session.record_person_answer(answer)
    assert session.propose(pair(TEN)) is not None


@pytest.mark.parametrize("is_repetition", [True, False])
def test_call_that_a_person_denies_never_runs(is_repetition: bool) -> None:
    session = begin(can=PERSON, effect="destructive")
    call = pair(TEN) if is_repetition else turn()
    if is_repetition:
        execute(session, pair(TEN))
    session.propose(call)
    session.propose(call)
    assert session.record_person_answer("no, once is enough").endswith('The reply: "no, once is enough".')
    assert session.propose(call) is not None
    assert session.stop_reason is not None


def test_suspicious_call_that_a_person_approves_runs() -> None:
    session = begin(can=PERSON, effect="destructive")
    session.propose(turn())
    session.propose(turn())
    session.record_person_answer("yes")
    assert session.propose(turn()) is None


def test_answer_to_a_question_about_no_call_reaches_the_agent_unchanged() -> None:
    assert begin(can=PERSON).record_person_answer("Look in the attic.") == "Look in the attic."


def test_arguments_that_cannot_be_parsed_are_refused_as_often_as_other_malformed_calls() -> None:
    session = begin(effect="destructive")
    for raw in ('{"amount": 10', "ten to Ann", "amount=10"):
        call = ToolCall(id="c", name="transfer", arguments=None, raw_arguments=raw)
        plan = session.propose(replace(turn(), tool_calls=(call,)))
        assert plan is not None
        assert plan.strategy == "reprompt"
    assert session.propose(turn(amount=10, to="Ann")) is None
    assert session.stop_reason is None


def test_escalation_policy_limits_refusals_of_malformed_calls() -> None:
    policy = RecoveryPolicy(escalations={"malformed_call": [{"reprompt": {"times": 2}}, "stop"]})
    session = begin(effect="destructive", policy=policy)
    for _ in range(3):
        session.propose(turn(amount="ten", to="Ann"))
    assert [one.plan.strategy for one in session.recoveries] == ["reprompt", "reprompt", "stop"]


@pytest.mark.parametrize("times", [0, True, "two"])
def test_reprompt_rejects_a_number_of_times_that_is_none(times: Any) -> None:
    with pytest.raises(ConfigError, match="expected 1 or more"):
        RecoveryPolicy(on_fail={"reprompt": {"times": times}}).build_planner()


def test_heeded_hold_is_confirmed_and_a_call_made_again_decides_nothing() -> None:
    outcomes = {}
    for is_repeated in (True, False):
        session = begin(effect="destructive")
        execute(session, pair(TEN))
        session.propose(pair(TEN))
        if is_repeated:
            assert session.propose(pair(TEN)) is None
            execute(session, pair(TEN), "sent, receipt 8")
        session.commit(Step(index=0, source=Source.AGENT, agent="clerk", content="Ann has 10."))
        session.end()
        outcomes[is_repeated] = session.recoveries[-1].outcome
    assert outcomes == {True: RecoveryOutcome.UNKNOWN, False: RecoveryOutcome.CONFIRMED}
