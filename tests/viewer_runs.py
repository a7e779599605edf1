"""Runs for the viewer's tests: a guarded run with rollbacks, and synthetic long runs.

`recovered` runs the real guard over a real loop with a scripted model. In the run, the agent

- invents an address (refused before any tool runs);
- loops (rolled back);
- works with an ungrounded price (found when the acceptance test rejects the end: undone and rolled back);
- does one thing twice (executed once);
- calls a tool that dies during its effect (unknown outcome).

`long_run` is deterministic, with times, tokens and costs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

from agentguard.guard import Guard
from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.localize.serialization import build_diagnosis_rows
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.store.db.rows import StepRow
from agentguard.store.store import Store
from agentguard.trajectory.model import (
    Branch,
    Observation,
    Source,
    Step,
    ToolCall,
    ToolSpec,
    Trajectory,
    Usage,
)
from agentguard.verdict import Verdict

RECOVERED = "lisbon-hotel"
TASK = (
    "Book a double room in Lisbon for 2 nights from 2027-03-12, at most 150 euros a night. Hold the money, "
    "book the room, log the trip, and tell Ana Duarte what it costs in total."
)
_BEGAN = 1_790_000_000.0


def recovered(store: Store) -> str:
    """Guard the booking agent, diagnose the run and store it; return the run's id."""
    desk = _Desk()
    guard = desk.guard(store)
    script = _script()
    system = "You book travel. Never guess: look it up."
    with guard.run(TASK, tools=desk.tools, system=system, id=RECOVERED) as run:
        while not run.done:
            run.tools(run.model(lambda messages: next(script)))
    store.flush(20)
    timed = _timed(store, guard_s=run.session.overhead_s)
    store.write_run(timed)
    store.write(*build_diagnosis_rows(Guard().diagnose(timed)))
    store.flush(20)
    return RECOVERED


def diagnosed(run: Trajectory) -> Diagnosis:
    """Return the diagnosis by all detectors, with the first finding as the root cause."""
    return Guard(localizer="first_finding").diagnose(run)


def lost(steps: int = 18) -> tuple[Trajectory, Diagnosis]:
    """Return a failed run without a recovery, with ranked hypotheses and overlapping quotes."""
    run = long_run(steps, id="unrecovered-total")
    wrong = replace(
        run.steps[4],
        content="The price is 37.5 euros a night, I am sure of it, so I take 37.5 from here on.",
        reasoning="Nothing told me the price. I will assume 37.5 and go on.",
    )
    tail = replace(
        run.steps[-1],
        source=Source.AGENT,
        agent="planner",
        content="Done: 2 nights at 37.5 make 75 euros.",
        tool_calls=(),
        observations=(),
    )
    run = replace(run, steps=(*run.steps[:4], wrong, *run.steps[5:-1], tail))
    found = Guard(localizer="first_finding").diagnose(run)
    from agentguard.detect.quotes import quote_text

    quotes = (
        *quote_text(wrong, "content", "37.5 euros a night, I am sure of it"),
        *quote_text(wrong, "content", "I am sure of it, so I take 37.5"),
        *quote_text(wrong, "reasoning", "I will assume 37.5"),
    )
    first = Hypothesis(
        step=4,
        agent=wrong.agent,
        module="memory",
        codes=("agent_error:memory.hallucination",),
        probability=0.71,
        evidence=quotes,
        correction="Do not assume the price. Ask the hotel for it, then compute the total again.",
        reason="The agent works with a price that nothing in the run gave it.",
    )
    second = Hypothesis(
        step=6, agent="planner", module="planning", codes=("mast:step_repetition",), probability=0.19
    )
    third = Hypothesis(step=9, agent="clerk", probability=0.06)
    verdict = replace(
        found, verdict=Verdict.FAILED, probability=0.93, hypotheses=(first, second, third), method="two_line"
    )
    return run, verdict


def long_run(steps: int, *, id: str | None = None) -> Trajectory:
    """Return a deterministic run of ``steps`` steps by two agents, with tools and errors."""
    return Trajectory(
        id=id or f"long-{steps}",
        format="event_log",
        task="Check every order of the quarter from 10003 on; list those whose total is wrong.",
        steps=tuple(_long_steps(steps)),
        tools=(ToolSpec(name="read_order", description="Read an order.", parameters={"type": "object"}),),
        system_prompts={"": "Work through the list. Report what does not match."},
        branches=_long_branches(steps),
        extra={"model": "example-model-1", "tags": ["quarterly", "orders"]},
    )


def fill(store: Store, *, long: tuple[int, ...] = (1_000,)) -> tuple[str, ...]:
    """Store all runs; return their ids, the recovered run first."""
    ids = [recovered(store)]
    run, diagnosis = lost()
    store.write_run(run)
    store.write(*build_diagnosis_rows(diagnosis))
    ids.append(run.id)
    for steps in long:
        run = long_run(steps)
        store.write_run(run)
        store.write(*build_diagnosis_rows(diagnosed(run)))
        ids.append(run.id)
    store.flush(60)
    return tuple(ids)


class _Desk:
    """The agent's environment: a hotel, a bank, a mail box, and a log that dies."""

    def __init__(self) -> None:
        self.booked: list[dict[str, Any]] = []
        self.sent: list[str] = []
        self.logged: list[str] = []

    @property
    def tools(self) -> list[Any]:
        return [self.search_hotels, self.hold_money, self.book_room, self.send_mail, self.log_trip]

    def guard(self, store: Store) -> Guard:
        guard = Guard(
            localizer="first_finding",
            recover=RecoveryPolicy(
                on_fail=("compensate", "rollback", "stop"),
                escalations={"exact_loop": ("rollback", "stop")},
                budget=RecoveryBudget(rollbacks=6, extra_tokens=None),
            ),
            accept=self._accept,
            store=store,
        )
        guard.tool(effect="read")(self.search_hotels)
        guard.tool(effect="write", undo=self._release, idempotency_key="booking")(self.hold_money)
        guard.tool(effect="write", undo=self._cancel)(self.book_room)
        guard.tool(effect="write")(self.send_mail)
        guard.tool(effect="destructive")(self.log_trip)
        return guard

    def _accept(self, run: Trajectory) -> bool | str:
        wrong = [one for one in self.booked if one["price"] != 112.4]
        return f"the room was booked at {wrong[0]['price']} euros, which no hotel offers" if wrong else True

    def search_hotels(self, city: str, max_price: float = 150) -> str:
        """Search for hotels; the prices are euros a night."""
        if city != "Lisbon":
            return "no results"
        offers = [
            {"hotel": "Casa do Rio", "room": "double", "rate_code": "CDR-88", "price": 112.4},
            {"hotel": "Miradouro", "room": "double", "rate_code": "MIR-12", "price": 143.0},
        ]
        return json.dumps({"city": city, "offers": [one for one in offers if one["price"] <= max_price]})

    def hold_money(self, booking: str, amount: float) -> str:
        """Hold an amount on the traveller's account."""
        return json.dumps({"held": amount, "hold": f"hold-{booking}"})

    def _release(self, booking: str, amount: float) -> None:
        """Give the amount free again."""

    def book_room(self, hotel: str, rate_code: str, price: float, nights: int) -> str:
        """Book a room at a price a night."""
        self.booked.append({"hotel": hotel, "price": price})
        return json.dumps({"status": "booked", "booking": f"BK-{len(self.booked)}"})

    def _cancel(self, hotel: str, rate_code: str, price: float, nights: int) -> None:
        self.booked = [one for one in self.booked if one["price"] != price]

    def send_mail(self, to: str, subject: str) -> str:
        """Send a mail to a traveller."""
        self.sent.append(to)
        return f"sent to {to}"

    def log_trip(self, city: str) -> str:
        """Write the trip into the log."""
        self.logged.append(city)
        raise TimeoutError("the log did not answer")


def _script() -> Iterator[dict[str, Any] | str]:
    """Return the model's messages, in order; the guard decides which of them remain."""
    yield _call("I search for rooms in Lisbon.", "search_hotels", city="Lisbon", max_price=150)
    # invented: refused before it runs
    yield _call("I tell Ana that it began.", "send_mail", to="ana.d@corp.example", subject="Your trip")
    yield _call("Then I tell her under her name.", "send_mail", to="Ana Duarte", subject="Your trip")
    # from here on with an ungrounded price
    yield _call(
        "Casa do Rio costs 137.5 euros a night. I hold 137.5 for each of the 2 nights.",
        "hold_money",
        booking="casa-do-rio",
        amount=137.5,
    )
    yield _call("I log the trip.", "log_trip", city="Lisbon")
    for _ in range(3):
        yield _call("I look for something in Porto, too.", "search_hotels", city="Porto")
    yield _call(
        "I book at 137.5 a night.",
        "book_room",
        hotel="Casa do Rio",
        rate_code="CDR-88",
        price=137.5,
        nights=2,
    )
    yield _call("I tell Ana.", "send_mail", to="Ana Duarte", subject="Booked")
    yield "Booked: 2 nights in Casa do Rio at 137.5 euros, 275 euros in total."
    # after the rejected end
    yield _call(
        "The offer says 112.4 euros a night. I hold 224.8 for 2 nights.",
        "hold_money",
        booking="casa-do-rio",
        amount=224.8,
    )
    yield _call("I log the trip.", "log_trip", city="Lisbon")
    yield _call(
        "I book at the price of the offer.",
        "book_room",
        hotel="Casa do Rio",
        rate_code="CDR-88",
        price=112.4,
        nights=2,
    )
    yield _call("I tell Ana.", "send_mail", to="Ana Duarte", subject="Booked")
    yield "Booked: 2 nights in Casa do Rio at 112.4 euros a night, 224.8 in total. The log did not answer."
    while True:
        yield "Booked: 2 nights at 112.4 euros a night."


_IDS = count(1)


def _call(said: str, name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"call-{next(_IDS)}", "type": "function", "function": function}
    return {"role": "assistant", "content": said, "tool_calls": [call]}


def _timed(store: Store, guard_s: float) -> Trajectory:
    """Return the run with times and tokens in chronological order, as an integration records it."""
    found = store.get_run_rows(RECOVERED)
    assert found is not None
    _, rows, _ = found
    order = {(row.line, row.index): place for place, row in enumerate(sorted(rows, key=_recorded))}
    run = store.get_trajectory(RECOVERED)
    assert run is not None
    branches = tuple(
        replace(one, steps=tuple(_clocked(step, order[one.id, step.index]) for step in one.steps))
        for one in run.branches
    )
    steps = tuple(_clocked(step, order["", step.index]) for step in run.steps)
    extra = {**run.extra, "model": "example-model-1", "agentguard": {"guard_s": guard_s}}
    return replace(run, steps=steps, branches=branches, extra=extra)


def _recorded(row: StepRow) -> float:
    return row.created_at


def _clocked(step: Step, place: int) -> Step:
    begin = _BEGAN + place * 2.2
    took = 0.6 + (len(step.content) % 7) * 0.25
    if step.source is not Source.AGENT:
        return replace(step, started_at=begin, ended_at=begin + 0.1)
    prompt, said = 300 + 90 * step.index, 20 + len(step.content) // 3
    usage = Usage(prompt_tokens=prompt, completion_tokens=said, cost_usd=(prompt + 4 * said) * 1e-6)
    return replace(step, started_at=begin, ended_at=begin + took, usage=usage, model="example-model-1")


def _long_steps(steps: int) -> Iterator[Step]:
    clock = _BEGAN
    for index in range(steps):
        begin, took = clock, 0.2 + (index * 7 % 11) * 0.31
        clock += took + 0.05
        if index == 0:
            yield Step(index=0, source=Source.USER, agent="user", content="Begin.", started_at=begin)
            continue
        order = 10_000 + index * 3
        wrong = index % 97 == 41
        result = (
            f"Error: order {order} is locked"
            if wrong
            else json.dumps(
                {"order": order, "total": round(order * 0.17, 2), "next": [order + 3, order + 6, order + 9]}
            )
        )
        acts = index % 3 != 2
        yield Step(
            index=index,
            source=Source.AGENT,
            agent="clerk" if index % 2 else "planner",
            content=f"Step {index}: I look at order {order}."
            + ("" if acts else f" Its total of {round((order - 3) * 0.17, 2)} matches."),
            reasoning="I go on with the list." if index % 5 == 0 else "",
            tool_calls=(
                (
                    ToolCall(
                        id=f"c{index}",
                        name="read_order",
                        arguments={"order": order, "fields": ["total", "next"]},
                    ),
                )
                if acts
                else ()
            ),
            observations=(
                (Observation(content=result, call_id=f"c{index}", tool="read_order", is_error=wrong or None),)
                if acts
                else ()
            ),
            started_at=begin,
            ended_at=begin + took,
            usage=Usage(prompt_tokens=500 + index % 400, completion_tokens=40, cost_usd=0.0004),
            model="example-model-1",
        )


def _long_branches(steps: int) -> tuple[Branch, ...]:
    if steps < 200:
        return ()
    fork = steps // 2
    left = tuple(
        Step(index=i, source=Source.AGENT, agent="clerk", content=f"Left line, step {i}.")
        for i in range(fork, fork + 5)
    )
    return (Branch(id="left-1", fork_step=fork, steps=left, reason="The same orders were read again."),)
