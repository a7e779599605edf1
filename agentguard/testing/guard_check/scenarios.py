"""Scenarios of the guard check, generated from a compact grammar.

A scenario is a program of a scripted model and the behaviour of its two tools. The program is a list of
phases. A phase repeats calls until a result contains a text, or a number of times. A model that follows
corrections leaves the phase after a number of messages of the guard. The scenario does not declare whether it
passes: a run without the guard decides that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from agentguard.testing.contracts.integrations import (
    TASK,
    UNKNOWN_TOOL_CALL,
    ContractRequest,
    ContractRun,
    ToolInvocation,
)

_NEVER = 10**6
_MAX_ANSWERS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Repetition of calls.

    Attributes:
        calls: calls in turn.
        is_parallel: whether one answer has all calls.
        times: number of repetitions.
        until: text in the last tool result that ends the phase; empty for none.
        corrections: number of messages of the guard after which the model leaves the phase.
    """

    calls: tuple[ToolInvocation, ...]
    is_parallel: bool = False
    times: int = 1
    until: str = ""
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
        find_results: results of the tool ``find``, in turn; "!" begins an error. The last one repeats.
        book_results: the same for ``book``. An error that begins with "!timeout" follows a booking.
        seat: seat that the task names; a booking of another seat, or a second one, does harm.
        is_declared: whether the effects of the tools are declared.
    """

    name: str
    phases: tuple[Phase, ...]
    answer: str = "Seat 4 is booked."
    false_answer: str = ""
    answer_corrections: int = 0
    find_results: tuple[str, ...] = ("seat 4 is free",)
    book_results: tuple[str, ...] = ("seat 4 is yours",)
    seat: int = 4
    is_declared: bool = True


@dataclass
class ScriptedRun(ContractRun):
    """Run of a scenario: the model and the tools, and what they did.

    Attributes:
        scenario: the scenario.
    """

    scenario: ScriptedScenario = field(default_factory=lambda: ScriptedScenario(name="", phases=()))
    _phase: int = 0
    _made: int = 0
    _corrections: int = 0
    _guard_texts: set[str] = field(default_factory=set)
    _book_count: int = 0

    def next_answer(self, request: ContractRequest) -> Any:
        """Return the answer of the scripted model to a request."""
        self.requests.append(request)
        if len(self.requests) > _MAX_ANSWERS:
            return "I give up."
        self._count_corrections(request)
        last = request.tool_results[-1] if request.tool_results else ""
        while self._phase < len(self.scenario.phases):
            phase = self.scenario.phases[self._phase]
            is_over = self._made >= phase.times * len(phase.answers) or self._corrections >= phase.corrections
            if is_over or (phase.until and self._made and phase.until in last):
                self._phase, self._made, self._corrections = self._phase + 1, 0, 0
                continue
            self._made += 1
            return phase.answers[(self._made - 1) % len(phase.answers)]
        if self.scenario.false_answer and self._corrections < self.scenario.answer_corrections:
            return self.scenario.false_answer
        return self.scenario.answer

    def book(self, seat: int) -> str:
        """Book a seat, or fail as the scenario says."""
        result = _take(self.scenario.book_results, self._book_count)
        self._book_count += 1
        if not result.startswith("!") or result.startswith("!timeout"):
            self.bookings[seat] += 1
        return _deliver(result)

    def find(self, where: str) -> str:
        """Find a seat, or fail as the scenario says."""
        del where
        self.find_count += 1
        return _deliver(_take(self.scenario.find_results, self.find_count - 1))

    @property
    def harmful_bookings(self) -> int:
        """Number of bookings of a wrong seat, and of repeated bookings."""
        right = self.bookings[self.scenario.seat]
        wrong = sum(self.bookings.values()) - right
        return wrong + max(0, right - 1)

    @property
    def guard_message_count(self) -> int:
        """Number of different messages of the guard that the model received."""
        return len(self._guard_texts)

    def _count_corrections(self, request: ContractRequest) -> None:
        texts = {text for text in request.user_texts if "[guard]" in text}
        self._corrections += bool(texts - self._guard_texts)
        self._guard_texts |= texts


def _take(results: tuple[str, ...], place: int) -> str:
    return results[min(place, len(results) - 1)]


def _deliver(result: str) -> str:
    """Return the text that the model gets; frameworks differ in what they do with exceptions."""
    return f"Error: {result[1:]}" if result.startswith("!") else result


FIND: ToolInvocation = ("find", {"where": "aisle"})
BOOK: ToolInvocation = ("book", {"seat": 4})
_BOOKING = Phase(calls=(BOOK,))
_TRANSIENT_ERRORS = ("!HTTP 503 Service Unavailable", "!the request timed out", "!connection reset by peer")
_PENDING_RESULTS = ('{"status": "pending"}', "the search is still running", "status: queued")
_DEAD_ENDS = ("no seat is free at the aisle", "[]", "nothing found")
_CORRECTIONS = (1, 2, _NEVER)


def build_scenarios() -> tuple[ScriptedScenario, ...]:
    """Build all scenarios; their names are unique."""
    return tuple(scenario for declared in (True, False) for scenario in _iter_scenarios(declared))


def _iter_scenarios(is_declared: bool) -> Iterator[ScriptedScenario]:
    kind = "declared" if is_declared else "undeclared"
    for name, parts in _iter_benign():
        yield ScriptedScenario(name=f"{name}/{kind}", is_declared=is_declared, **parts)
    search = Phase(calls=(("find", {"where": "row 1"}),))
    for name, parts in _iter_faulty():
        yield ScriptedScenario(name=f"{name}/{kind}", is_declared=is_declared, **parts)
        phases = (search, *parts["phases"])
        yield ScriptedScenario(
            name=f"{name}/after_search/{kind}", is_declared=is_declared, **{**parts, "phases": phases}
        )


def _iter_benign() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield scenarios whose models recover without help."""
    yield from _iter_direct()
    yield from _iter_waits()
    yield from _iter_parallel()
    for count in range(1, 5):
        for place in (0, 1):
            invented = Phase(calls=(UNKNOWN_TOOL_CALL,), times=count)
            before = (Phase(calls=(FIND,)),) * place
            yield f"unknown_tool/{count}/{place}", {"phases": (*before, invented, _BOOKING)}
    for count in range(2, 7):
        for result in _DEAD_ENDS:
            loop = Phase(calls=(FIND,), times=count)
            yield f"stubborn/{count}/{result[:7]}", {"phases": (loop, _BOOKING), "find_results": (result,)}
    for count in range(1, 5):
        taken = ("!seat 4 is locked by another customer",) * count
        booking = Phase(calls=(BOOK,), times=count + 1, until="yours")
        yield f"retried_booking/{count}", {"phases": (booking,), "book_results": (*taken, "seat 4 is yours")}


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
        for count in (2, 3):
            doubled = Phase(
                calls=(BOOK,) * count, is_parallel=True, until="yours", corrections=needed, times=99
            )
            yield f"parallel/double_booking/{count}/{label}", {"phases": (doubled, _BOOKING)}
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


__all__ = ["TASK", "Phase", "ScriptedRun", "ScriptedScenario", "build_scenarios"]
