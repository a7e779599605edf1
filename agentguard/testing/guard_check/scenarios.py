"""Scenarios of the guard check, generated from a compact grammar.

A scenario is a program of a scripted model and the behaviour of its two tools. It does not declare its
expected outcome: the run without the guard decides whether it passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentguard.testing.contracts.integrations import (
    UNKNOWN_TOOL_CALL,
    RunFeature,
    ToolInvocation,
)
from agentguard.testing.guard_check.scripted_run import (
    CANCELLATION,
    NEVER,
    Phase,
    ScriptedScenario,
)

FIND: ToolInvocation = ("find", {"where": "aisle"})
BOOK: ToolInvocation = ("book", {"seat": 4})
_BOOKING = Phase(calls=(BOOK,))
_TRANSIENT_ERRORS = ("!HTTP 503 Service Unavailable", "!the request timed out", "!connection reset by peer")
_PENDING_RESULTS = ('{"status": "pending"}', "the search is still running", "status: queued")
_DEAD_ENDS = ("no seat is free at the aisle", "[]", "nothing found")
_CORRECTIONS = (1, 2, NEVER)
_SCOUT = Phase(calls=(("scout", {"where": "aisle"}),))
_SEAT_ANSWER = '{"seat": 4, "status": "booked"}'


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
    """Yield scenarios that pass without the guard."""
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
    """Yield runs whose task needs equal bookings; the model repeats a booking that the guard rejects."""
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
    """Yield runs that are cancelled; they pass if the cancellation ends them and no effect is repeated."""
    needs = {"feature": RunFeature.CANCELLATION}
    for count in range(1, 4):
        for before in (("seat 4 is free",), _TRANSIENT_ERRORS[:1]):
            results = (before * (count - 1)) + (CANCELLATION,)
            search = Phase(calls=(FIND,), times=count)
            yield (
                f"cancelled/find/{count}/{before[0][:6]}",
                {
                    "phases": (search, _BOOKING),
                    "find_results": results,
                    **needs,
                },
            )
        booking = Phase(
            calls=(BOOK,), times=count + 1
        )  # a framework may convert the cancellation to a result
        taken = ("!seat 4 is locked by another customer",) * (count - 1)
        yield (
            f"cancelled/book/{count}",
            {
                "phases": (booking,),
                "book_results": (*taken, CANCELLATION),
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
    """Yield scenarios that fail without the guard."""
    for needed in _CORRECTIONS:
        label = "never" if needed == NEVER else str(needed)
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
    """Yield runs that need one booking, and whose model makes an equal one later or in parallel."""
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
