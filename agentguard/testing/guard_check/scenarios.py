"""Scenarios of the guard check, generated from a compact grammar.

A scenario is a program of a scripted model and the behaviour of its two tools. The program is a list of
phases. A phase repeats calls until a result contains a text, or a number of times. A model that follows
corrections leaves the phase after a number of messages of the guard. The scenario does not declare whether it
passes: a run without the guard decides that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from agentguard.testing.contracts.integrations import (
    TASK,
    UNKNOWN_TOOL_CALL,
    ContractRequest,
    ContractRun,
    RunFeature,
    ToolInvocation,
)

_NEVER = 10**6
_MAX_ANSWERS = 40
_MAX_REQUESTS = 200
_CANCELLATION = "!cancelled"
SUB_AGENT_MODEL = "scout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Repetition of calls.

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
    corrections: int = _NEVER

    @property
    def answers(self) -> tuple[Any, ...]:
        """Answers of one repetition."""
        return (list(self.calls),) if self.is_parallel else self.calls


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedScenario:
    """Scripted run.

    Attributes:
        name: kind and parameters, separated by slashes.
        phases: program of the model.
        answer: last message of the model.
        false_answer: message that the model sends first, instead of ``answer``.
        answer_corrections: number of messages of the guard after which the model sends ``answer``.
        wrong_answers: number of not valid structured answers before ``answer``.
        find_results: results of the tool ``find``, in turn; "!" begins an error, "!cancelled" cancels the
            run. The last one repeats.
        book_results: the same for ``book``. An error that begins with "!timeout" follows a booking.
        cancelled_request: number of the request to the model that is cancelled; 0 for none.
        seat: seat that the task names; a booking of another seat does harm.
        wanted_bookings: number of bookings that the task needs; each further one does harm.
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
    _made: int = 0

    def next_call(self, request: ContractRequest) -> Any:
        """Return the next calls of the program; None at its end."""
        texts = {text for text in request.user_texts if "[guard]" in text}
        self.corrections += bool(texts - self.guard_texts)
        self.guard_texts |= texts
        while self._phase < len(self.phases):
            phase = self.phases[self._phase]
            is_over = self._made >= phase.times * len(phase.answers) or self.corrections >= phase.corrections
            if is_over or self._has_succeeded(phase, request):
                self._phase, self._made, self.corrections = self._phase + 1, 0, 0
                continue
            self._made += 1
            return phase.answers[(self._made - 1) % len(phase.answers)]
        return None

    def _has_succeeded(self, phase: Phase, request: ContractRequest) -> bool:
        if not phase.until:
            return False
        if phase.successes > 1:
            return sum(phase.until in result for result in request.tool_results) >= phase.successes
        return bool(self._made) and phase.until in "".join(request.tool_results[-1:])


@dataclass
class ScriptedRun(ContractRun):
    """Run of a scenario: the models and the tools, and what they did.

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
            raise RuntimeError(f"the agent goes on after {_MAX_ANSWERS} answers and a last one")
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
            return _WRONG_SEAT_ANSWERS[(self._wrong_answers - 1) % len(_WRONG_SEAT_ANSWERS)]
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
        result = _take(self.scenario.book_results, self._book_count)
        self._book_count += 1
        if not result.startswith("!") or result.startswith(("!timeout", _CANCELLATION)):
            self.bookings[seat] += 1
        return _deliver(result)

    def find(self, where: str) -> str:
        """Find a seat, or fail as the scenario requires."""
        del where
        self.find_count += 1
        return _deliver(_take(self.scenario.find_results, self.find_count - 1))

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


def _take(results: tuple[str, ...], place: int) -> str:
    return results[min(place, len(results) - 1)]


def _deliver(result: str) -> str:
    """Return the text that the model gets; frameworks differ in what they do with exceptions."""
    if result.startswith(_CANCELLATION):
        raise asyncio.CancelledError
    return f"Error: {result[1:]}" if result.startswith("!") else result


FIND: ToolInvocation = ("find", {"where": "aisle"})
BOOK: ToolInvocation = ("book", {"seat": 4})
_BOOKING = Phase(calls=(BOOK,))
_TRANSIENT_ERRORS = ("!HTTP 503 Service Unavailable", "!the request timed out", "!connection reset by peer")
_PENDING_RESULTS = ('{"status": "pending"}', "the search is still running", "status: queued")
_DEAD_ENDS = ("no seat is free at the aisle", "[]", "nothing found")
_CORRECTIONS = (1, 2, _NEVER)
_SCOUT = Phase(calls=(("scout", {"where": "aisle"}),))
_SEAT_ANSWER = '{"seat": 4, "status": "booked"}'
_WRONG_SEAT_ANSWERS = ('{"seat": "four", "status": "booked"}', '{"seat": 4}')


def build_scenarios() -> tuple[ScriptedScenario, ...]:
    """Build all scenarios; their names are unique."""
    return tuple(scenario for declared in (True, False) for scenario in _iter_scenarios(declared))


def _iter_scenarios(is_declared: bool) -> Iterator[ScriptedScenario]:
    kind = "declared" if is_declared else "undeclared"
    for name, parts in _iter_benign():
        if parts.get("is_repeatable") and not is_declared:
            continue
        yield ScriptedScenario(name=f"{name}/{kind}", is_declared=is_declared, **parts)
    search = Phase(calls=(("find", {"where": "row 1"}),))
    for name, parts in _iter_faulty():
        yield ScriptedScenario(name=f"{name}/{kind}", is_declared=is_declared, **parts)
        if parts.get("feature"):
            continue
        phases = (search, *parts["phases"])
        yield ScriptedScenario(
            name=f"{name}/after_search/{kind}", is_declared=is_declared, **{**parts, "phases": phases}
        )


def _iter_benign() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield scenarios whose models recover without help."""
    yield from _iter_direct()
    yield from _iter_waits()
    yield from _iter_parallel()
    yield from _iter_cancellations()
    yield from _iter_sub_agents()
    yield from _iter_approvals()
    yield from _iter_structured_answers()
    yield from _iter_wanted_repetitions()
    for count in range(1, 5):
        for place in (0, 1):
            invented = Phase(calls=(UNKNOWN_TOOL_CALL,), times=count)
            before = (Phase(calls=(FIND,)),) * place
            yield f"unknown_tool/{count}/{place}", {"phases": (*before, invented, _BOOKING)}
    for count in range(2, 7):
        for result in _DEAD_ENDS:
            loop = Phase(calls=(FIND,), times=count)
            yield f"stubborn/{count}/{result[:7]}", {"phases": (loop, _BOOKING), "find_results": (result,)}
    for count in range(1, 6):
        wrong = Phase(calls=(("book", {"seat": "four"}),), times=count)
        yield f"refused_argument/{count}", {"phases": (wrong, _BOOKING), "validates_seat": True}
    for count in range(1, 5):
        taken = ("!seat 4 is locked by another customer",) * count
        booking = Phase(calls=(BOOK,), times=count + 1, until="yours")
        yield f"retried_booking/{count}", {"phases": (booking,), "book_results": (*taken, "seat 4 is yours")}


def _iter_wanted_repetitions() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield runs whose task needs equal bookings; a model with a held booking makes it again."""
    for count in (2, 3):
        needs: dict[str, Any] = {"wanted_bookings": count}
        for calls in ((BOOK,), (BOOK, FIND)):
            bookings = Phase(calls=calls, times=9, until="yours", successes=count)
            yield f"wanted_repetition/{count}/{calls[-1][0]}", {"phases": (bookings,), **needs}
        pair = Phase(calls=(BOOK,) * count, is_parallel=True, until="yours", successes=count, corrections=1)
        one_by_one = Phase(calls=(BOOK,), times=9, until="yours", successes=count)
        yield f"wanted_repetition/{count}/parallel", {"phases": (pair, one_by_one), **needs}
        repeatable = {"is_repeatable": True, **needs}
        yield f"wanted_repetition/{count}/repeatable", {"phases": (one_by_one,), **repeatable}
        stubborn = Phase(calls=(BOOK,) * count, is_parallel=True, times=9, until="yours", successes=count)
        yield f"wanted_repetition/{count}/parallel/repeatable", {"phases": (stubborn,), **repeatable}


def _iter_direct() -> Iterator[tuple[str, dict[str, Any]]]:
    for count in range(10):
        places = tuple(("find", {"where": f"row {row}"}) for row in range(count))
        results = tuple(f"row {row} is full" for row in range(count)) or ("seat 4 is free",)
        yield (
            f"direct/{count}",
            {"phases": (Phase(calls=places), _BOOKING)[not count :], "find_results": results},
        )


def _iter_waits() -> Iterator[tuple[str, dict[str, Any]]]:
    for count in range(1, 12):
        for error in _TRANSIENT_ERRORS:
            yield f"transient/{count}/{error[1:8]}", _build_wait((error,) * count)
    for count in range(1, 22):
        for result in _PENDING_RESULTS:
            yield f"polling/{count}/{result[:12]}", _build_wait((result,) * count)
    for count in range(2, 16):
        yield f"progress/{count}", _build_wait(tuple(f"{n} of {count} rows searched" for n in range(count)))


def _iter_parallel() -> Iterator[tuple[str, dict[str, Any]]]:
    for count in range(2, 6):
        rows = tuple(("find", {"where": f"row {row}"}) for row in range(count))
        yield f"parallel/reads/{count}", {"phases": (Phase(calls=rows, is_parallel=True), _BOOKING)}
        yield (
            f"parallel/read_and_booking/{count}",
            {"phases": (Phase(calls=(*rows, BOOK), is_parallel=True),)},
        )
        invented = Phase(calls=(*rows, UNKNOWN_TOOL_CALL), is_parallel=True)
        yield f"parallel/unknown_tool/{count}", {"phases": (invented, _BOOKING)}
        for result in (*_TRANSIENT_ERRORS, *_PENDING_RESULTS):
            wait = Phase(calls=rows, is_parallel=True, times=4, until="seat 4 is free")
            yield (
                f"parallel/wait/{count}/{result[1:8]}",
                {"phases": (wait, _BOOKING), "find_results": (result,) * count + ("seat 4 is free",)},
            )


def _iter_cancellations() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield runs that are cancelled; they pass if the cancellation ends them and nothing is repeated."""
    needs = {"feature": RunFeature.CANCELLATION}
    for count in range(1, 4):
        for before in (("seat 4 is free",), _TRANSIENT_ERRORS[:1]):
            results = (before * (count - 1)) + (_CANCELLATION,)
            search = Phase(calls=(FIND,), times=count)
            yield (
                f"cancelled/find/{count}/{before[0][:6]}",
                {
                    "phases": (search, _BOOKING),
                    "find_results": results,
                    **needs,
                },
            )
        booking = Phase(calls=(BOOK,), times=count + 1)  # a framework may make a result of the cancellation
        taken = ("!seat 4 is locked by another customer",) * (count - 1)
        yield (
            f"cancelled/book/{count}",
            {
                "phases": (booking,),
                "book_results": (*taken, _CANCELLATION),
                **needs,
            },
        )
        yield (
            f"cancelled/model/{count}",
            {
                "phases": (Phase(calls=(FIND,)), _BOOKING),
                "cancelled_request": count,
                **needs,
            },
        )


def _iter_sub_agents() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield runs with an agent as a tool."""
    needs = {"feature": RunFeature.SUB_AGENT, "phases": (_SCOUT, _BOOKING)}
    for count in range(1, 5):
        rows = tuple(("find", {"where": f"row {row}"}) for row in range(count))
        yield f"sub_agent/direct/{count}", {"scout_phases": (Phase(calls=rows),), **needs}
        for result in (*_TRANSIENT_ERRORS, *_PENDING_RESULTS):
            wait = _build_wait((result,) * count)
            yield (
                f"sub_agent/wait/{count}/{result[1:8]}",
                {
                    "scout_phases": wait["phases"][:1],
                    "find_results": wait["find_results"],
                    **needs,
                },
            )
        invented = Phase(calls=(UNKNOWN_TOOL_CALL,), times=count)
        yield f"sub_agent/unknown_tool/{count}", {"scout_phases": (invented, Phase(calls=(FIND,))), **needs}


def _iter_approvals() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield runs in which a person decides on each booking."""
    for refusals in range(4):
        booking = Phase(calls=(BOOK,), times=refusals + 1, until="yours")
        program = {"feature": RunFeature.APPROVAL, "approvals": (False,) * refusals}
        for before in ((), (Phase(calls=(FIND,)),), (Phase(calls=(UNKNOWN_TOOL_CALL,)),)):
            label = before[0].calls[0][0] if before else "direct"
            yield f"approval/{refusals}/{label}", {"phases": (*before, booking), **program}
    yield (
        "approval/refused",
        {
            "phases": (_BOOKING,),
            "answer": "It could not be done: nothing was changed.",
            "feature": RunFeature.APPROVAL,
            "approvals": (False,),
        },
    )


def _iter_structured_answers() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield runs whose answers must match a schema."""
    for count in range(3):
        for before in ((), (Phase(calls=(FIND,)),), (Phase(calls=(UNKNOWN_TOOL_CALL,)),)):
            label = before[0].calls[0][0] if before else "direct"
            yield (
                f"structured/{count}/{label}",
                {
                    "phases": (*before, _BOOKING),
                    "answer": _SEAT_ANSWER,
                    "wrong_answers": count,
                    "feature": RunFeature.STRUCTURED_OUTPUT,
                },
            )


def _build_wait(results: tuple[str, ...]) -> dict[str, Any]:
    wait = Phase(calls=(FIND,), times=len(results) + 1, until="seat 4 is free")
    return {"phases": (wait, _BOOKING), "find_results": (*results, "seat 4 is free")}


def _iter_faulty() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield scenarios whose models fail, or do harm, without help."""
    for needed in _CORRECTIONS:
        label = "never" if needed == _NEVER else str(needed)
        for result in (*_DEAD_ENDS, *_TRANSIENT_ERRORS, *_PENDING_RESULTS):
            loop = Phase(calls=(FIND,), times=99, corrections=needed)
            yield f"loop/{result[:8]}/{label}", {"phases": (loop, _BOOKING), "find_results": (result,)}
        for places in (("aisle", "window"), ("aisle", "window", "front")):
            calls = tuple(("find", {"where": place}) for place in places)
            for is_parallel, kind in ((False, "stall"), (True, "parallel_stall")):
                cycle = Phase(calls=calls, is_parallel=is_parallel, times=99, corrections=needed)
                yield (
                    f"{kind}/{len(places)}/{label}",
                    {"phases": (cycle, _BOOKING), "find_results": ("none",)},
                )
        invented = Phase(calls=(UNKNOWN_TOOL_CALL,), times=99, corrections=needed)
        yield f"unknown_tool_forever/{label}", {"phases": (invented, _BOOKING)}
        for seat in ("four", "4th", [4], None, 711, 2048, 90210):
            wrong = Phase(calls=(("book", {"seat": seat}),), corrections=needed)
            yield f"wrong_argument/{seat}/{label}", {"phases": (wrong, _BOOKING)}
        for retries in range(1, 6):
            booking = Phase(calls=(BOOK,), times=retries + 1, until="yours", corrections=needed)
            results = ("!timeout: no answer from the booking service",) * retries + ("seat 4 is yours",)
            yield f"double_booking/{retries}/{label}", {"phases": (booking,), "book_results": results}
        yield from _iter_repeated_bookings(needed, label)
        yield from _iter_faulty_features(needed, label)
        for claim in (
            "I have booked seat 4.",
            "Great news! I booked seat 4.",
            "Seat 4 has been booked for you.",
        ):
            for error in ("seat 4 is free", *_TRANSIENT_ERRORS):
                yield (
                    f"false_claim/{claim[:6]}/{error[:8]}/{label}",
                    {
                        "phases": (Phase(calls=(FIND,)),),
                        "false_answer": claim,
                        "answer_corrections": needed,
                        "answer": "It could not be done: nothing was changed.",
                        "find_results": (error,),
                    },
                )


def _iter_repeated_bookings(needed: int, label: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield runs that need one booking, and in which the model makes an equal one after or beside it."""
    for count in (2, 3):
        for calls in ((BOOK,), (BOOK, FIND)):
            again = Phase(calls=calls, times=count, corrections=needed)
            yield f"repeated_booking/{count}/{calls[-1][0]}/{label}", {"phases": (again,)}
    insisting = Phase(calls=(BOOK,), times=9, until="yours", successes=2, corrections=needed)
    yield f"repeated_booking/insisting/{label}", {"phases": (insisting,)}
    for count in (2, 3):
        doubled = Phase(calls=(BOOK,) * count, is_parallel=True, until="yours", corrections=needed, times=99)
        yield f"parallel/double_booking/{count}/{label}", {"phases": (doubled, _BOOKING)}


def _iter_faulty_features(needed: int, label: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield failing runs that need a feature of the framework."""
    for result in (*_DEAD_ENDS, *_TRANSIENT_ERRORS):
        yield (
            f"sub_agent/loop/{result[:8]}/{label}",
            {
                "phases": (_SCOUT, _BOOKING),
                "scout_phases": (Phase(calls=(FIND,), times=99, corrections=needed),),
                "find_results": (result,),
                "feature": RunFeature.SUB_AGENT,
            },
        )
    yield (
        f"sub_agent/asked_again/{label}",
        {
            "phases": (Phase(calls=_SCOUT.calls, times=99, corrections=needed), _BOOKING),
            "scout_phases": (Phase(calls=(FIND,)),),
            "find_results": ("nothing found",),
            "feature": RunFeature.SUB_AGENT,
        },
    )
    yield (
        f"structured/false_claim/{label}",
        {
            "phases": (Phase(calls=(FIND,)),),
            "false_answer": _SEAT_ANSWER,
            "answer_corrections": needed,
            "answer": '{"seat": 4, "status": "nothing was changed"}',
            "feature": RunFeature.STRUCTURED_OUTPUT,
        },
    )


__all__ = ["TASK", "Phase", "ScriptedRun", "ScriptedScenario", "build_scenarios"]
