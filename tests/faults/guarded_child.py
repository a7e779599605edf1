"""A guarded agent that books seats in a database, and is killed at a given point of its work."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from typing import Any

from agentguard.guard import Guard
from agentguard.localize.last_error import LastError
from agentguard.recover.policy import Recover
from agentguard.store import Store

SEATS = 6


class Killer:
    """Ends the process without a word when the n-th point is reached."""

    def __init__(self, at: int) -> None:
        self.left = at

    def point(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def work(url: str, world: str, said: str, kill_at: int) -> None:
    """Book every seat once; go on where an earlier life stopped."""
    killer = Killer(kill_at)
    with Store.open(url) as store:
        run = _run(store, world, killer)
        while not run.done:
            killer.point()
            turn = run.model(agent)
            killer.point()
            run.tools(turn)
            killer.point()
            store.flush(20)
            _say(said, str(len(run.session)))
        store.flush(20)
    _say(said, f"end {run.answer}")


def _run(store: Store, world: str, killer: Killer) -> Any:
    guard = Guard(localizer=LastError(), recover=Recover(on_fail="rollback"), store=store)
    _with_points(store, killer)

    @guard.tool(effect="write")
    def book(seat: int) -> str:
        """Book a seat."""
        killer.point()
        with sqlite3.connect(world) as database:
            database.execute("insert into booked values (?)", (seat,))
        killer.point()
        return f"seat {seat} is yours"

    @guard.tool(effect="read")
    def check(seat: int) -> str:
        """Look whether a seat is booked."""
        with sqlite3.connect(world) as database:
            found = database.execute("select count(*) from booked where seat = ?", (seat,)).fetchone()[0]
        return "booked" if found else "free"

    @guard.tool(effect="read")
    def search(where: str) -> str:
        """Find a seat."""
        return "nothing found"

    return guard.run("Book all seats.", tools=[book, check, search], id="r", resume=True)


def _with_points(store: Store, killer: Killer) -> None:
    for name in ("claim", "settle"):
        real = getattr(store, name)

        def pointed(*args: Any, real: Any = real, **more: Any) -> Any:
            killer.point()
            answer = real(*args, **more)
            killer.point()
            return answer

        setattr(store, name, pointed)


def agent(messages: list[dict[str, Any]]) -> dict[str, Any] | str:
    """Books seat after seat; looks first where a booking is in doubt; loops on its way, to be taken back."""
    seat, state = 1, "free"
    for message in messages:
        if message["role"] != "tool":
            continue
        text = str(message["content"])
        if "is yours" in text or text == "booked":
            seat, state = seat + 1, "free"
        elif text == "free":
            state = "free"
        elif text.startswith("[guard]"):
            state = "in doubt"
    if seat > SEATS:
        return f"{SEATS} seats are booked."
    warned = any("taken back" in str(message["content"]) for message in messages)
    if seat == 3 and state == "free" and not warned:
        return _call("search", where="aisle")
    return _call("check" if state == "in doubt" else "book", seat=seat)


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
