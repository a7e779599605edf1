"""An agent that claims an effect without a call is asked again before its run ends."""

from __future__ import annotations

import pytest

from agentguard.guard import Guard
from agentguard.recover.capabilities import Capabilities
from agentguard.recover.plan import RecoveryOutcome
from agentguard.runtime.run_end import EFFECT_CLAIM_TRIGGER
from agentguard.runtime.session import Session
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec, Trajectory

META = Trajectory(
    id="r",
    format="event_log",
    task="Find seat 4 and book it.",
    steps=(),
    tools=tuple(ToolSpec(name=name) for name in ("find", "book_seat", "send_mail", "cancelOrder")),
)


def begin(task: str = META.task) -> Session:
    session = Guard(localizer="first_finding").session(META, Capabilities(reject=True, truncate=True))
    session.commit(Step(index=0, source=Source.USER, agent="user", content=task))
    return session


def say(text: str, agent: str = "clerk") -> Step:
    return Step(index=0, source=Source.AGENT, agent=agent, content=text)


def book(session: Session, result: str) -> None:
    claim = session.begin_tool("book_seat", {})
    session.end_tool(claim, result)
    call = ToolCall(id="c", name="book_seat", arguments={})
    seen = Observation(content=result, call_id="c", tool="book_seat")
    session.commit(
        Step(index=0, source=Source.AGENT, agent="clerk", tool_calls=(call,), observations=(seen,))
    )


CLAIMS = [
    "Great news! I booked seat 4.",
    "I have booked seat 4, confirmation ABC123.",
    "Seat 4 has been successfully booked for you.",
    "I've sent the mail.",
    "The order has been cancelled.",
    '{"seat": 4, "status": "booked"}',
]


@pytest.mark.parametrize("text", CLAIMS)
def test_claim_without_call_refuses_the_end(text: str) -> None:
    session = begin()
    session.commit(say(text))
    assert session.end() is not None
    (recovery,) = session.recoveries
    assert recovery.trigger == EFFECT_CLAIM_TRIGGER
    session.commit(say("It was not possible."))
    assert session.end() is None
    assert session.recoveries[0].outcome is RecoveryOutcome.CONFIRMED


@pytest.mark.parametrize(
    "text",
    [
        "I could not book seat 4.",
        "Nothing was booked; I have not booked it.",
        "Once it is booked, you get a mail.",
        "I found seat 4.",
        "I looked at the seats. Seat 4 is free.",
        '{"seat": 4, "status": "free"}',
        '{"seat": null, "status": "not booked"}',
        "",
    ],
)
def test_message_without_claim_ends_the_run(text: str) -> None:
    session = begin()
    session.commit(say(text))
    assert session.end() is None
    assert session.recoveries == []


def test_claim_after_successful_call_ends_the_run() -> None:
    session = begin()
    book(session, "ok")
    session.commit(say(CLAIMS[0]))
    assert session.end() is None


def test_claim_after_failed_call_refuses_the_end() -> None:
    session = begin()
    book(session, "Error: seat 4 is taken")
    session.commit(say(CLAIMS[0]))
    assert session.end() is not None


@pytest.mark.parametrize("source", ["task", "other agent", "earlier turns"])
def test_effect_of_somebody_else_is_not_disputed(source: str) -> None:
    session = begin("I booked seat 4 yesterday. Confirm it." if source == "task" else META.task)
    if source == "other agent":
        session.commit(say("The seat is booked.", agent="booker"))
    session.has_earlier_turns = source == "earlier turns"
    session.commit(say(CLAIMS[0]))
    assert session.end() is None


def test_claim_that_the_agent_insists_on_ends_the_run() -> None:
    session = begin()
    ends = 0
    while not session.has_ended:
        session.check_boundary()
        session.commit(say(CLAIMS[0]))
        session.end()
        ends += 1
    assert ends <= 3
    assert session.stop_reason is None


def test_end_that_cannot_be_refused_records_the_finding() -> None:
    session = begin()
    session.commit(say(CLAIMS[0]))
    assert session.end(is_refusable=False) is None
    assert session.has_ended
    assert [one.detector for one in session.findings] == [EFFECT_CLAIM_TRIGGER]
