"""A guarded agent that walks between rows and books seats; the test kills its process at a given point.

The bookings are rows in a database. The agent's position is a state of its process. It is lost with the
process,
and the guard saves and restores it. A booking records the position, so that a wrong state is visible.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sqlite3
from collections.abc import Callable
from typing import Any

from agentguard.guard import Guard
from agentguard.localize.baselines.last_error import LastErrorLocalizer
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.recover.snapshots.manager import SnapshotOptions
from agentguard.store import Store

SEATS = 6
ROLLBACKS = 2
"""The agent loops three times, so the last loop exceeds the budget of rollbacks."""
_STUBBORN = 7


class Killer:
    """Ends the process without cleanup at the n-th point."""

    def __init__(self, at: int) -> None:
        self.left = at

    def point(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Hall:
    """The tools, and the state that some of them change."""

    def __init__(self, book: Callable[[int, int], None], booked: Callable[[int], bool]) -> None:
        self.state: dict[str, Any] = {"at": 0, "path": []}
        self._book, self._booked = book, booked

    def walk(self, to: int) -> str:
        """Walk to a row."""
        self.state["at"] = to
        self.state["path"].append(to)
        return f"at row {to}"

    def book(self, seat: int) -> str:
        """Book a seat."""
        self._book(seat, self.state["at"])
        return f"seat {seat} is yours"

    def find_booking(self, seat: int) -> str | None:
        """Return the result of a booking that took effect, or None."""
        return f"seat {seat} is yours" if self._booked(seat) else None

    def check(self, seat: int) -> str:
        """Look whether a seat is booked."""
        return "booked" if self._booked(seat) else "free"

    def search(self, where: str) -> str:
        """Find a seat."""
        return "nothing found"

    def save(self) -> Any:
        return self.state

    def restore(self, state: Any) -> None:
        self.state = state


def guarded(store: Store, hall: Hall, *, dear: bool) -> Any:
    """Return a new run of the agent, or resume the stored one.

    Args:
        store: the store of the run.
        hall: the tools and their state.
        dear: make a snapshot cost as much as a turn, so that the guard does not save at each turn.
    """
    recover = RecoveryPolicy(
        on_fail=[{"rollback": {"prefer": "fork"}}],
        budget=RecoveryBudget(rollbacks=ROLLBACKS, rollbacks_per_step=1),
    )
    guard = Guard(localizer=LastErrorLocalizer(), recover=recover, store=store)
    # The guard repeats a call that a crash cut off only if the hall has no booking of the seat.
    guard.tool(effect="write", name="book", reconcile=hall.find_booking)(hall.book)
    for name in ("walk", "check", "search"):  # walking changes only the state, which a rollback restores
        guard.tool(effect="read", name=name)(getattr(hall, name))
    clock = itertools.count().__next__ if dear else itertools.repeat(0.0).__next__
    return guard.run(
        "Book all seats.",
        tools=[hall.book, hall.walk, hall.check, hall.search],
        id="r",
        save=hall.save,
        restore=hall.restore,
        snapshots=SnapshotOptions(clock=lambda: float(clock())),
        resume=True,
    )


def work(url: str, world: str, said: str, kill_at: int, dear: bool) -> None:
    """Book every seat once; continue from the point where an earlier process died."""
    killer = Killer(kill_at)
    with Store.open(url) as store:
        hall = _hall(world, killer)
        _with_points(store, killer, "claim", "settle", "write")
        _with_points(hall, killer, "save", "restore")
        run = guarded(store, hall, dear=dear)
        while not run.done:
            killer.point()
            turn = run.model(agent)
            killer.point()
            run.tools(turn)
            killer.point()
            store.flush(20)
            _say(said, str(len(run.session)))
        store.flush(20)
    _say(said, f"state {json.dumps(hall.state)}")
    _say(said, f"spent {run.session.account.usage.rollbacks}")
    _say(said, f"end {run.answer}")


def _hall(world: str, killer: Killer) -> Hall:
    def book(seat: int, at: int) -> None:
        killer.point()
        with sqlite3.connect(world) as database:
            database.execute("insert into booked values (?, ?)", (seat, at))
        killer.point()

    def booked(seat: int) -> bool:
        with sqlite3.connect(world) as database:
            found = database.execute("select count(*) from booked where seat = ?", (seat,)).fetchone()[0]
        return bool(found)

    return Hall(book, booked)


def _with_points(owner: Any, killer: Killer, *names: str) -> None:
    for name in names:
        real = getattr(owner, name)

        def pointed(*args: Any, real: Any = real, **more: Any) -> Any:
            killer.point()
            answer = real(*args, **more)
            killer.point()
            return answer

        setattr(owner, name, pointed)


def agent(messages: list[dict[str, Any]]) -> dict[str, Any] | str:
    """Return the next move: walk and book, row after row; check the seat after an unknown outcome.

    The agent loops on its way: once until a rollback hint, and twice regardless of hints, up to a fixed
    count.
    """
    seen = [str(message["content"]) for message in messages if message["role"] == "tool"]
    seat = 1 + sum("is yours" in text or text == "booked" for text in seen)
    if seat > SEATS:
        return f"{SEATS} seats are booked."
    if seen and seen[-1].startswith("[guard]"):
        return _call("check", seat=seat)
    at = next((int(text.split()[-1]) for text in reversed(seen) if text.startswith("at row")), 0)
    if at != seat:
        return _call("walk", to=seat)
    warned = any("rolled back" in str(message["content"]) for message in messages)
    if seat == 2 and not warned:
        return _call("search", where="aisle")
    last = next(place for place, text in enumerate(reversed(seen)) if text.startswith("at row"))
    if seat in (4, 5) and last < _STUBBORN:
        return _call("search", where=f"window {seat}")
    return _call("book", seat=seat)


def _call(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }


def _say(path: str, line: str) -> None:
    file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(file, f"{line}\n".encode())
    os.close(file)
