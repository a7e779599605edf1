"""What every integration must keep to: the same scripts, the same tools and the same guard in each framework.

An integration is tested through a `World`: a function that runs an agent of its framework on `TASK` under a
guard it is given. The agent's tools are `Played.book` and `Played.find`, its model answers with what
`Played.next` (or `Played.anext`) returns: a text, or a call as ``(tool, arguments)``. The world fills in
``sessions`` and ``answer``; what the models saw and what the tools really did is kept by `Played` itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentguard.detect.base import Finding
from agentguard.errors import RunStopped
from agentguard.guard import Guard
from agentguard.localize.base import Diagnosis, Hypothesis, Verdict
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.recover.strategy import RecoveryOutcome
from agentguard.runtime.session import Session
from agentguard.trajectory.model import Source, Trajectory

TASK = "Book seat 4."
ToolInvocation = tuple[str, dict[str, Any]]
BOOK_CALL: ToolInvocation = ("book", {"seat": 4})
FIND_CALL: ToolInvocation = ("find", {"where": "aisle"})
UNKNOWN_TOOL_CALL: ToolInvocation = ("fly", {})
"""A call of a tool that does not exist."""
FINAL_ANSWER = "Seat 4 is booked."

ScriptedAnswer = Any
"""What a model answers: a text, a tool and its arguments, or an exception that the call ends with."""


@dataclass
class ContractRequest:
    """One question to a model.

    Attributes:
        model: its name.
        told: texts of users that it saw, the guard's among them.
        results: what tools had returned.
        temperature: that it was asked with.
    """

    model: str
    user_texts: list[str]
    tool_results: list[str]
    temperature: float | None = None


@dataclass
class ContractRun:
    """A run under a guard.

    Attributes:
        script: what each model answers, by its name; ``"own"`` is the agent's.
        finds: what `find` returns, in turn, or raises; then always the same.
        booked: seats, by how often they were really booked.
        found: how often `find` was called.
        asked: what the models were asked.
        sessions: of the guarded runs.
        answer: the agent's last word.
        most_at_once: models that were asked side by side.
    """

    script: dict[str, list[ScriptedAnswer]]
    find_results: list[Any] = field(default_factory=list)
    bookings: Counter[Any] = field(default_factory=Counter)
    find_count: int = 0
    requests: list[ContractRequest] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    answer: str = ""
    max_concurrent: int = 0
    _concurrent: int = 0

    @property
    def session(self) -> Session:
        """The last session that was begun."""
        return self.sessions[-1]

    @property
    def guard_text(self) -> str:
        """What the guard had said when a model was asked for the last time."""
        return " ".join(text for text in self.requests[-1].user_texts if text.startswith("[guard]"))

    def next_answer(self, request: ContractRequest) -> ScriptedAnswer:
        """What a model answers now."""
        self.requests.append(request)
        answer = self.script[request.model].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def next_answer_async(self, request: ContractRequest) -> ScriptedAnswer:
        """As `next`, with a pause in which others may be asked."""
        self._concurrent += 1
        self.max_concurrent = max(self.max_concurrent, self._concurrent)
        await asyncio.sleep(0.01)
        self._concurrent -= 1
        return self.next_answer(request)

    def book(self, seat: int) -> str:
        """Book a seat."""
        assert type(seat) is int
        self.bookings[seat] += 1
        return f"seat {seat} is yours"

    def find(self, where: str) -> str:
        """Find a seat."""
        del where
        self.find_count += 1
        given = self.find_results.pop(0) if self.find_results else "seat 4 is free"
        if isinstance(given, Exception):
            raise given
        return str(given)


World = Callable[[Guard, ContractRun], None]


def run_script(
    world: World, answers: Sequence[ScriptedAnswer] | Mapping[str, Sequence[ScriptedAnswer]], **parts: Any
) -> tuple[ContractRun, str | None]:
    """Play a script in a world.

    Args:
        world: of the integration.
        answers: of the agent's own model, or of each model by its name.
        parts: of the guard; ``finds`` is what `Played.find` returns.

    Returns:
        What came of it, and why the guard stopped the run, if it did.
    """
    script = answers if isinstance(answers, Mapping) else {"own": answers}
    played = ContractRun({name: list(given) for name, given in script.items()}, list(parts.pop("finds", ())))
    guard = Guard(**{"localizer": FixedStepLocalizer(), **parts})
    guard.tool(effect="write")(played.book)
    guard.tool(effect="read")(played.find)
    try:
        world(guard, played)
    except RunStopped as stop:
        return played, str(stop)
    return played, played.session.stop_reason


class FixedStepLocalizer:
    """A localizer that points at one step; at none, where it is given none: then what was found is all.

    Args:
        step: from 0.
    """

    name = "points"

    def __init__(self, step: int | None = None) -> None:
        self._step = step

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        """That step."""
        del findings
        given = {"trajectory_id": trajectory.id, "method": self.name, "probability": 0.9}
        if self._step is None:
            return Diagnosis(verdict=Verdict.ABSTAINED, **given)  # type: ignore[arg-type]
        held = Hypothesis(step=self._step, agent=trajectory.steps[self._step].agent, probability=0.9)
        return Diagnosis(verdict=Verdict.FAILURE, hypotheses=(held,), **given)  # type: ignore[arg-type]


def check_seat_named(run: Trajectory) -> bool | str:
    """An acceptance test: the agent's last word names the seat."""
    return run.steps[-1].content.startswith("Seat 4") or "the answer does not say which seat was booked"


def check_healthy_run_unchanged(world: World) -> None:
    """Nothing is added, and the record is whole: the task, the call with its result, the answer."""
    played, stopped = run_script(world, [BOOK_CALL, FINAL_ANSWER])
    session = played.session
    assert (played.answer.strip(), played.bookings, stopped) == (FINAL_ANSWER, {4: 1}, None)
    assert (session.recoveries, session.failures, session.has_ended) == ([], [], True)
    assert [step.source for step in session.run.steps] == [Source.USER, Source.AGENT, Source.AGENT]
    assert session.run.task == TASK
    called = session.run.steps[1]
    assert [(one.name, one.arguments) for one in called.tool_calls] == [BOOK_CALL]
    assert [one.content for one in called.observations] == ["seat 4 is yours"]
    assert [effect.state.value for effect in session.ledger.effects()] == ["done"]
    assert played.requests[-1].user_texts == [TASK]


def check_loop_rolled_back(world: World) -> None:
    """What was cut is out of the model's sight for good, the guard's word is in it, and both are recorded."""
    played, _ = run_script(
        world, [FIND_CALL, FIND_CALL, FIND_CALL, "There is none."], recover=RecoveryPolicy(on_fail="rollback")
    )
    session = played.session
    assert played.answer.strip().endswith("There is none.")
    assert [one.outcome for one in session.recoveries] == [RecoveryOutcome.CONFIRMED]
    assert len(played.requests[-1].tool_results) < played.find_count
    assert played.guard_text
    assert session.run.branches
    assert session.run.branches[0].steps


def check_rejected_call_not_executed(world: World) -> None:
    """A turn is judged before its tools run; the model is asked again, and keeps what it was told."""
    played, _ = run_script(
        world, [UNKNOWN_TOOL_CALL, BOOK_CALL, FINAL_ANSWER], recover=RecoveryPolicy(on_fail="rollback")
    )
    session = played.session
    assert (played.answer.strip(), played.bookings) == (FINAL_ANSWER, {4: 1})
    assert [one.plan.tier.name for one in session.recoveries] == ["REJECT"]
    assert session.run.branches[0].steps[-1].tool_calls[0].name == "fly"
    assert played.guard_text, "told once, and not at the next turn any more"


def check_effect_executed_once(world: World) -> None:
    """A rollback cannot undo what a tool did: the call is not made again, and the agent is told of it."""
    answers = [BOOK_CALL, "I do not know.", BOOK_CALL, FINAL_ANSWER]
    guard: dict[str, Any] = {
        "recover": RecoveryPolicy(on_fail="rollback"),
        "accept": check_seat_named,
        "localizer": FixedStepLocalizer(1),
    }
    played, stopped = run_script(world, answers, **guard)
    assert (played.bookings, stopped) == ({4: 1}, None)
    assert played.answer.strip().endswith(FINAL_ANSWER)
    assert [effect.state.value for effect in played.session.ledger.effects()] == ["done"]
    assert "seat 4 is yours" in " ".join([played.guard_text, *played.requests[-1].tool_results])


def check_end_requires_acceptance(world: World) -> None:
    """The acceptance test has the last word, and what it said of the recovery is kept."""
    played, _ = run_script(
        world,
        ["I am off.", FINAL_ANSWER],
        recover=RecoveryPolicy(on_fail="reexecute"),
        accept=check_seat_named,
    )
    session = played.session
    assert played.answer.strip().endswith(FINAL_ANSWER)
    assert [(one.trigger, one.outcome) for one in session.recoveries] == [
        ("acceptance", RecoveryOutcome.CONFIRMED)
    ]
    assert session.has_ended
    assert played.requests[-1].user_texts[0].startswith(TASK), "the task is never taken back"


def check_stop_reports_reason(world: World) -> None:
    """However the framework is told to end, it ends, and says why."""
    played, stopped = run_script(world, [FIND_CALL] * 30, recover=RecoveryPolicy(on_fail="stop"))
    assert stopped
    assert played.find_count <= 4
    assert str(played.session.stop_reason) in stopped


def check_budget_stops_recovery(world: World) -> None:
    """An agent that heeds nothing is taken back as often as the budget says, and no more."""
    budget = RecoveryBudget(rollbacks=2, rollbacks_per_step=1)
    played, stopped = run_script(
        world, [FIND_CALL] * 20, recover=RecoveryPolicy(on_fail=["rollback", "stop"], budget=budget)
    )
    assert [one.plan.strategy for one in played.session.recoveries] == ["rollback", "rollback", "stop"]
    assert played.session.account.usage.rollbacks == 2
    assert stopped


def check_guard_failure_tolerated(world: World) -> None:
    """A failure of a part of the guard is noted, and is no failure of the run."""

    def fails(_: Trajectory) -> bool:
        raise ValueError("the acceptance test is broken")

    played, stopped = run_script(world, [BOOK_CALL, FINAL_ANSWER], accept=fails)
    assert (played.answer.strip(), played.bookings, stopped) == (FINAL_ANSWER, {4: 1}, None)
    assert [failure.error for failure in played.session.failures] == ["ValueError"]


def check_concurrent_runs_isolated(world: World) -> None:
    """Two runs at once have two sessions, two ledgers and two answers."""
    made: dict[int, ContractRun] = {}

    def one(seat: int) -> None:
        made[seat], _ = run_script(world, [("book", {"seat": seat}), f"Seat {seat} is booked."])

    threads = [threading.Thread(target=one, args=(seat,)) for seat in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(made) == {1, 2}
    for seat, played in made.items():
        assert played.bookings == {seat: 1}
        assert played.answer.strip() == f"Seat {seat} is booked."
        assert len(played.session) == 3


CHECKS: tuple[Callable[[World], None], ...] = (
    check_healthy_run_unchanged,
    check_loop_rolled_back,
    check_rejected_call_not_executed,
    check_effect_executed_once,
    check_end_requires_acceptance,
    check_stop_reports_reason,
    check_budget_stops_recovery,
    check_guard_failure_tolerated,
    check_concurrent_runs_isolated,
)
"""The suite."""
