"""Scripted run: a scripted model, its two tools, and the harm that its bookings do.

The program of the model is a list of phases. A phase repeats calls until a result contains a text, or a
number of times. A model that follows corrections leaves the phase after a number of messages of the guard.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from agentguard.testing.contracts.integrations import (
    ContractRequest,
    ContractRun,
    RunFeature,
    ToolInvocation,
)

NEVER = 10**6
"""Number of corrections of a model that ignores the guard."""
_MAX_ANSWERS = 40
_MAX_REQUESTS = 200
CANCELLATION = "!cancelled"
"""Result of a tool that raises `asyncio.CancelledError`."""
SUB_AGENT_MODEL = "scout"
WRONG_SEAT_ANSWERS = ('{"seat": "four", "status": "booked"}', '{"seat": 4}')


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Repetition of calls in the program of a model.

    Attributes:
        calls: calls in turn.
        is_parallel: whether one answer has all calls.
        times: number of repetitions.
        until: text in the last tool result that ends the phase; empty for none.
        successes: number of tool results with this text that end the phase.
        corrections: number of messages of the guard after which the model leaves the phase.
    """

    calls: tuple[ToolInvocation, ...]
    is_parallel: bool = False
    times: int = 1
    until: str = ""
    successes: int = 1
    corrections: int = NEVER

    @property
    def answers(self) -> tuple[Any, ...]:
        """Answers of one repetition."""
        return (list(self.calls),) if self.is_parallel else self.calls


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedScenario:
    """Scenario: the programs of the models, and the behaviour of the tools.

    Attributes:
        name: kind and parameters, separated by slashes.
        phases: program of the model.
        answer: last message of the model.
        false_answer: message that the model sends first, instead of ``answer``.
        answer_corrections: number of messages of the guard after which the model sends ``answer``.
        wrong_answers: number of invalid structured answers before ``answer``.
        find_results: results of the tool ``find``, in turn; "!" begins an error, "!cancelled" cancels the
            run. The last one repeats.
        book_results: the same for ``book``. An error that begins with "!timeout" follows a booking.
        cancelled_request: number of the request to the model that is cancelled; 0 for none.
        seat: seat that the task names; a booking of another seat is harmful.
        wanted_bookings: number of bookings that the task needs; each further one is harmful.
        is_declared: whether the effects of the tools are declared.
        is_repeatable: whether ``book`` is declared repeatable.
        validates_seat: whether ``book`` refuses a seat that is not a number, as a framework with validation.
        feature: feature that the run needs.
        approvals: decisions of the person, in turn; afterwards every booking is approved.
        scout_phases: program of the sub-agent's model, which answers with the last result of its tool.
    """

    name: str
    phases: tuple[Phase, ...]
    answer: str = "Seat 4 is booked."
    false_answer: str = ""
    answer_corrections: int = 0
    wrong_answers: int = 0
    find_results: tuple[str, ...] = ("seat 4 is free",)
    book_results: tuple[str, ...] = ("seat 4 is yours",)
    cancelled_request: int = 0
    seat: int = 4
    wanted_bookings: int = 1
    is_declared: bool = True
    is_repeatable: bool = False
    validates_seat: bool = False
    feature: RunFeature | None = None
    approvals: tuple[bool, ...] = ()
    scout_phases: tuple[Phase, ...] = ()


@dataclass
class _ScriptedModel:
    """Position of a model in its program.

    Attributes:
        phases: the program.
        corrections: messages of the guard that the model received in the current phase.
        guard_texts: all messages of the guard that the model received.
    """

    phases: tuple[Phase, ...]
    corrections: int = 0
    guard_texts: set[str] = field(default_factory=set)
    _phase: int = 0
    _answer_count: int = 0

    def next_call(self, request: ContractRequest) -> Any:
        """Return the next calls of the program; None at its end."""
        texts = {text for text in request.user_texts if "[guard]" in text}
        self.corrections += bool(texts - self.guard_texts)
        self.guard_texts |= texts
        while self._phase < len(self.phases):
            phase = self.phases[self._phase]
            is_over = (
                self._answer_count >= phase.times * len(phase.answers)
                or self.corrections >= phase.corrections
            )
            if is_over or self._has_succeeded(phase, request):
                self._phase, self._answer_count, self.corrections = self._phase + 1, 0, 0
                continue
            self._answer_count += 1
            return phase.answers[(self._answer_count - 1) % len(phase.answers)]
        return None

    def _has_succeeded(self, phase: Phase, request: ContractRequest) -> bool:
        if not phase.until:
            return False
        if phase.successes > 1:
            return sum(phase.until in result for result in request.tool_results) >= phase.successes
        return bool(self._answer_count) and phase.until in "".join(request.tool_results[-1:])


@dataclass
class ScriptedRun(ContractRun):
    """Run of a scenario: its models and tools, and the record of their calls.

    Attributes:
        scenario: the scenario.
    """

    scenario: ScriptedScenario = field(default_factory=lambda: ScriptedScenario(name="", phases=()))
    _wrong_answers: int = 0
    _book_count: int = 0

    def __post_init__(self) -> None:
        self.feature, self.approvals = self.scenario.feature, list(self.scenario.approvals)
        self._model = _ScriptedModel(self.scenario.phases)
        self._scout = _ScriptedModel(self.scenario.scout_phases)

    def next_answer(self, request: ContractRequest) -> Any:
        """Return the answer of the scripted model to a request."""
        self.requests.append(request)
        if len(self.requests) == self.scenario.cancelled_request:
            raise asyncio.CancelledError
        if len(self.requests) > _MAX_REQUESTS:
            raise RuntimeError(f"the agent continues after {_MAX_REQUESTS} requests")
        if len(self.requests) > _MAX_ANSWERS:
            return "I give up."
        if request.model == SUB_AGENT_MODEL:
            return self._next_scout_answer(request)
        calls = self._model.next_call(request)
        if calls is not None:
            return calls
        if self.scenario.false_answer and self._model.corrections < self.scenario.answer_corrections:
            return self.scenario.false_answer
        if self._wrong_answers < self.scenario.wrong_answers:
            self._wrong_answers += 1
            return WRONG_SEAT_ANSWERS[(self._wrong_answers - 1) % len(WRONG_SEAT_ANSWERS)]
        return self.scenario.answer

    def _next_scout_answer(self, request: ContractRequest) -> Any:
        """Return the answer of the sub-agent's model; a request without results begins its program."""
        if not request.tool_results and not any("[guard]" in text for text in request.user_texts):
            self._scout = _ScriptedModel(self.scenario.scout_phases, guard_texts=self._scout.guard_texts)
        calls = self._scout.next_call(request)
        return calls if calls is not None else request.tool_results[-1]

    def book(self, seat: int) -> str:
        """Book a seat, or fail as the scenario requires."""
        if self.scenario.validates_seat and type(seat) is not int:
            return f"Error: seat: {seat!r} is not a valid integer"
        result = _select_result(self.scenario.book_results, self._book_count)
        self._book_count += 1
        if not result.startswith("!") or result.startswith(("!timeout", CANCELLATION)):
            self.bookings[seat] += 1
        return _format_result(result)

    def find(self, where: str) -> str:
        """Find a seat, or fail as the scenario requires."""
        del where
        self.find_count += 1
        return _format_result(_select_result(self.scenario.find_results, self.find_count - 1))

    @property
    def harmful_bookings(self) -> int:
        """Number of bookings of a wrong seat, and of repeated bookings."""
        right = self.bookings[self.scenario.seat]
        wrong = sum(self.bookings.values()) - right
        return wrong + max(0, right - self.scenario.wanted_bookings)

    @property
    def guard_message_count(self) -> int:
        """Number of different messages of the guard that the models received."""
        return len(self._model.guard_texts | self._scout.guard_texts)


def _select_result(results: tuple[str, ...], place: int) -> str:
    return results[min(place, len(results) - 1)]


def _format_result(result: str) -> str:
    """Return the text that the model gets: an error is a text, because frameworks differ with exceptions."""
    if result.startswith(CANCELLATION):
        raise asyncio.CancelledError
    return f"Error: {result[1:]}" if result.startswith("!") else result
