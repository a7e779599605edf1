"""Contract of integrations: the same scripts, tools and guard in each framework.

A test tests an integration through an `AgentDriver`: a function that runs an agent of the framework on `TASK`
under the given guard.

- The agent's tools are `ContractRun.book` and `ContractRun.find`.
- Its model returns the result of `ContractRun.next_answer` (or `ContractRun.next_answer_async`): a text, a
  call as ``(tool, arguments)``, or a list of parallel calls. `list_invocations` returns the calls.
- The driver sets ``answer`` and appends the guard's sessions to ``sessions``.
- `ContractRun` records the requests to the models and the effects of the tools.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from pydantic import BaseModel

from agentguard.detect.base import Finding
from agentguard.errors import RunStopped
from agentguard.guard import Guard
from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.plan import RecoveryOutcome
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.runtime.session import Session
from agentguard.runtime.tool_execution import UNKNOWN_OUTCOME_MESSAGE
from agentguard.trajectory.model import Source, Trajectory
from agentguard.verdict import Verdict

TASK = "Book seat 4."
ToolInvocation = tuple[str, dict[str, Any]]
BOOK_CALL: ToolInvocation = ("book", {"seat": 4})
FIND_CALL: ToolInvocation = ("find", {"where": "aisle"})
UNKNOWN_TOOL_CALL: ToolInvocation = ("fly", {})
"""A call of a tool that does not exist."""
FINAL_ANSWER = "Seat 4 is booked."


class RunFeature(StrEnum):
    """Feature of a framework that some scripted runs need; `supports` declares those of a driver."""

    SUB_AGENT = "sub-agent"
    """The agent has a tool ``scout``: an agent with the model ``"scout"`` and the tool `ContractRun.find`."""
    APPROVAL = "approval"
    """`ContractRun.approve` decides each call of ``book`` before it runs."""
    STRUCTURED_OUTPUT = "structured output"
    """The answer is a `SeatAnswer`; the framework requests another answer if it is not valid."""
    CANCELLATION = "cancellation"
    """The model or a tool raises `asyncio.CancelledError`."""


class SeatAnswer(BaseModel):
    """Structured answer of an agent."""

    seat: int
    status: str


ScriptedAnswer = Any
"""Answer of a model: a text, a call, a list of parallel calls, or an exception that the request raises."""


def list_invocations(answer: ScriptedAnswer) -> list[ToolInvocation]:
    """Return the calls of an answer of a scripted model; none for a text."""
    if isinstance(answer, str):
        return []
    return answer if isinstance(answer, list) else [answer]


@dataclass
class ContractRequest:
    """Request to a model.

    Attributes:
        model: name of the model.
        user_texts: user messages in the request, including those of the guard.
        tool_results: tool results in the request.
        temperature: temperature of the request.
    """

    model: str
    user_texts: list[str]
    tool_results: list[str]
    temperature: float | None = None


@dataclass
class ContractRun:
    """Run under a guard: the scripted models, the tools, and the record of both.

    Attributes:
        script: remaining answers of each model, by its name; ``"own"`` is the agent's model.
        find_results: results or exceptions of `find`, in turn; afterwards `find` returns a fixed result.
        book_result: result of `book`; ``{seat}`` is the seat.
        bookings: number of actual bookings by seat.
        find_count: number of calls of `find`.
        requests: requests to the models.
        sessions: sessions of the guarded runs.
        answer: final answer of the agent.
        max_concurrent: highest number of concurrent requests.
        feature: feature that the driver must use in this run.
        approvals: results of `approve`, in turn; afterwards it returns True.
    """

    script: dict[str, list[ScriptedAnswer]]
    find_results: list[Any] = field(default_factory=list)
    book_result: str = "seat {seat} is yours"
    bookings: Counter[Any] = field(default_factory=Counter)
    find_count: int = 0
    requests: list[ContractRequest] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    answer: str = ""
    max_concurrent: int = 0
    feature: RunFeature | None = None
    approvals: list[bool] = field(default_factory=list)
    _concurrent: int = 0

    @property
    def session(self) -> Session:
        """The session that began last."""
        return self.sessions[-1]

    @property
    def guard_text(self) -> str:
        """Text of the guard in the last request to a model."""
        return " ".join(text for text in self.requests[-1].user_texts if text.startswith("[guard]"))

    def next_answer(self, request: ContractRequest) -> ScriptedAnswer:
        """Record the request and return the next scripted answer of its model, or raise it."""
        self.requests.append(request)
        answer = self.script[request.model].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def next_answer_async(self, request: ContractRequest) -> ScriptedAnswer:
        """Like `next_answer`, with a pause during which other requests may arrive."""
        self._concurrent += 1
        self.max_concurrent = max(self.max_concurrent, self._concurrent)
        await asyncio.sleep(0.01)
        self._concurrent -= 1
        return self.next_answer(request)

    def approve(self) -> bool:
        """Return whether a person approves a call of `book`."""
        return self.approvals.pop(0) if self.approvals else True

    def book(self, seat: int) -> str:
        """Book a seat."""
        assert type(seat) is int
        self.bookings[seat] += 1
        return self.book_result.format(seat=seat)

    def find(self, where: str) -> str:
        """Find a seat; return or raise the next of `find_results`."""
        del where
        self.find_count += 1
        result = self.find_results.pop(0) if self.find_results else "seat 4 is free"
        if isinstance(result, Exception):
            raise result
        return str(result)


AgentDriver = Callable[[Guard, ContractRun], None]
"""Function that runs an agent of a framework under a guard."""
_Function = TypeVar("_Function", bound=Callable[..., Any])


def supports(*features: RunFeature) -> Callable[[_Function], _Function]:
    """Declare the features of a driver; scripted runs that need another feature are counted as not run."""

    def declare(driver: _Function) -> _Function:
        driver.__dict__["features"] = frozenset(features)
        return driver

    return declare


def list_features(driver: AgentDriver) -> frozenset[RunFeature]:
    """Return the features that a driver declares."""
    return getattr(driver, "features", frozenset())


def run_script(
    driver: AgentDriver,
    answers: Sequence[ScriptedAnswer] | Mapping[str, Sequence[ScriptedAnswer]],
    **parts: Any,
) -> tuple[ContractRun, str | None]:
    """Run a driver with scripted models under a new guard.

    Args:
        driver: driver of the integration.
        answers: answers of the agent's own model, or of each model by its name.
        **parts: arguments of `Guard`. In addition, ``finds`` contains the results of `ContractRun.find`, and
            ``book_result`` is the result of `ContractRun.book`.

    Returns:
        The run, and the reason for which the guard stopped it, or None.
    """
    script = answers if isinstance(answers, Mapping) else {"own": answers}
    contract_run = ContractRun(
        {name: list(script_answers) for name, script_answers in script.items()}, list(parts.pop("finds", ()))
    )
    contract_run.book_result = parts.pop("book_result", contract_run.book_result)
    guard = Guard(**{"localizer": FixedStepLocalizer(), **parts})
    guard.tool(effect="write")(contract_run.book)
    guard.tool(effect="read")(contract_run.find)
    try:
        driver(guard, contract_run)
    except RunStopped as stop:
        return contract_run, str(stop)
    return contract_run, contract_run.session.stop_reason


class FixedStepLocalizer:
    """Localizer that always names one step; without a step the run is undecided.

    Args:
        step: index of the step, from 0.
    """

    name = "fixed_step"

    def __init__(self, step: int | None = None) -> None:
        self._step = step

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        """Return a diagnosis with the fixed step."""
        del findings
        fields = {"trajectory_id": trajectory.id, "method": self.name, "probability": 0.9}
        if self._step is None:
            return Diagnosis(verdict=Verdict.UNDECIDED, **fields)  # type: ignore[arg-type]
        hypothesis = Hypothesis(step=self._step, agent=trajectory.steps[self._step].agent, probability=0.9)
        return Diagnosis(verdict=Verdict.FAILED, hypotheses=(hypothesis,), **fields)  # type: ignore[arg-type]


def check_seat_named(run: Trajectory) -> bool | str:
    """Return True if the final answer names the seat; otherwise the reason (an acceptance test)."""
    return run.steps[-1].content.startswith("Seat 4") or "the answer does not say which seat was booked"


def check_healthy_run_unchanged(driver: AgentDriver) -> None:
    """Check that the guard adds nothing, and that the record has task, call, result and answer."""
    run, stop_reason = run_script(driver, [BOOK_CALL, FINAL_ANSWER])
    session = run.session
    assert (run.answer.strip(), run.bookings, stop_reason) == (FINAL_ANSWER, {4: 1}, None)
    assert (session.recoveries, session.failures, session.has_ended) == ([], [], True)
    assert [step.source for step in session.run.steps] == [Source.USER, Source.AGENT, Source.AGENT]
    assert session.run.task == TASK
    call_step = session.run.steps[1]
    assert [(one.name, one.arguments) for one in call_step.tool_calls] == [BOOK_CALL]
    assert [one.content for one in call_step.observations] == ["seat 4 is yours"]
    assert [effect.state.value for effect in session.ledger.effects()] == ["done"]
    assert run.requests[-1].user_texts == [TASK]


def check_loop_rolled_back(driver: AgentDriver) -> None:
    """Check that the model no longer sees removed steps but sees the guard's text, and both are recorded."""
    run, _ = run_script(
        driver,
        [FIND_CALL, FIND_CALL, FIND_CALL, "There is none."],
        recover=RecoveryPolicy(on_fail="rollback"),
    )
    session = run.session
    assert run.answer.strip().endswith("There is none.")
    assert [one.outcome for one in session.recoveries] == [RecoveryOutcome.UNKNOWN], (
        "the end of a run does not verify a recovery"
    )
    assert len(run.requests[-1].tool_results) < run.find_count
    assert run.guard_text
    assert session.run.branches
    assert session.run.branches[0].steps


def check_rejected_call_not_executed(driver: AgentDriver) -> None:
    """Check that the guard rejects a turn before its tools run, and that the model sees the reason."""
    run, _ = run_script(
        driver, [UNKNOWN_TOOL_CALL, BOOK_CALL, FINAL_ANSWER], recover=RecoveryPolicy(on_fail="rollback")
    )
    session = run.session
    assert (run.answer.strip(), run.bookings) == (FINAL_ANSWER, {4: 1})
    assert [one.plan.tier.name for one in session.recoveries] == ["REJECT"]
    assert session.run.branches[0].steps[-1].tool_calls[0].name == "fly"
    assert run.guard_text, "the next request must contain the reason for the rejection"


def check_effect_executed_once(driver: AgentDriver) -> None:
    """Check that a rollback does not execute a completed effect again, and that the agent sees its result."""
    answers = [BOOK_CALL, "I do not know.", BOOK_CALL, FINAL_ANSWER]
    guard: dict[str, Any] = {
        "recover": RecoveryPolicy(on_fail="rollback"),
        "accept": check_seat_named,
        "localizer": FixedStepLocalizer(1),
    }
    run, stop_reason = run_script(driver, answers, **guard)
    assert (run.bookings, stop_reason) == ({4: 1}, None)
    assert run.answer.strip().endswith(FINAL_ANSWER)
    assert [effect.state.value for effect in run.session.ledger.effects()] == ["done"]
    assert "seat 4 is yours" in " ".join([run.guard_text, *run.requests[-1].tool_results])


def check_effect_without_output_not_repeated(driver: AgentDriver) -> None:
    """Check that an equal call directly after a call without output does not run, and the run continues."""
    run, stop_reason = run_script(driver, [BOOK_CALL, BOOK_CALL, FINAL_ANSWER], book_result="")
    assert (run.bookings, stop_reason) == ({4: 1}, None)
    assert run.answer.strip().endswith(FINAL_ANSWER)
    guard_texts = [*run.requests[-1].user_texts, *run.requests[-1].tool_results]
    assert UNKNOWN_OUTCOME_MESSAGE.removeprefix("[guard] ") in " ".join(guard_texts)


def check_end_requires_acceptance(driver: AgentDriver) -> None:
    """Check that the acceptance test decides the end of the run, and that its result is recorded."""
    run, _ = run_script(
        driver,
        ["I am off.", FINAL_ANSWER],
        recover=RecoveryPolicy(on_fail="restart"),
        accept=check_seat_named,
    )
    session = run.session
    assert run.answer.strip().endswith(FINAL_ANSWER)
    assert [(one.trigger, one.outcome) for one in session.recoveries] == [
        ("acceptance", RecoveryOutcome.CONFIRMED)
    ]
    assert session.has_ended
    assert run.requests[-1].user_texts[0].startswith(TASK), "a rollback must not remove the task"


def check_stop_reports_reason(driver: AgentDriver) -> None:
    """Check that the run ends after a stop, and that the reason is reported."""
    run, stop_reason = run_script(driver, [FIND_CALL] * 30, recover=RecoveryPolicy(on_fail="stop"))
    assert stop_reason
    assert run.find_count <= 4
    assert str(run.session.stop_reason) in stop_reason


def check_budget_stops_recovery(driver: AgentDriver) -> None:
    """Check that the guard stops an agent that ignores every rollback once the budget is spent."""
    budget = RecoveryBudget(rollbacks=2, rollbacks_per_step=1)
    run, stop_reason = run_script(
        driver, [FIND_CALL] * 20, recover=RecoveryPolicy(on_fail=["rollback", "stop"], budget=budget)
    )
    assert [one.plan.strategy for one in run.session.recoveries] == ["rollback", "rollback", "stop"]
    assert run.session.account.usage.rollbacks == 2
    assert stop_reason


def check_guard_failure_tolerated(driver: AgentDriver) -> None:
    """Check that the failure of a guard component is recorded and does not fail the run."""

    def raise_error(_: Trajectory) -> bool:
        raise ValueError("the acceptance test is broken")

    run, stop_reason = run_script(driver, [BOOK_CALL, FINAL_ANSWER], accept=raise_error)
    assert (run.answer.strip(), run.bookings, stop_reason) == (FINAL_ANSWER, {4: 1}, None)
    assert [failure.error for failure in run.session.failures] == ["ValueError"]


def check_concurrent_runs_isolated(driver: AgentDriver) -> None:
    """Check that two concurrent runs have separate sessions, ledgers and answers."""
    runs_by_seat: dict[int, ContractRun] = {}

    def book_seat(seat: int) -> None:
        runs_by_seat[seat], _ = run_script(driver, [("book", {"seat": seat}), f"Seat {seat} is booked."])

    threads = [threading.Thread(target=book_seat, args=(seat,)) for seat in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(runs_by_seat) == {1, 2}
    for seat, contract_run in runs_by_seat.items():
        assert contract_run.bookings == {seat: 1}
        assert contract_run.answer.strip() == f"Seat {seat} is booked."
        assert len(contract_run.session) == 3


CHECKS: tuple[Callable[[AgentDriver], None], ...] = (
    check_healthy_run_unchanged,
    check_loop_rolled_back,
    check_rejected_call_not_executed,
    check_effect_executed_once,
    check_effect_without_output_not_repeated,
    check_end_requires_acceptance,
    check_stop_reports_reason,
    check_budget_stops_recovery,
    check_guard_failure_tolerated,
    check_concurrent_runs_isolated,
)
"""All checks of the contract."""
