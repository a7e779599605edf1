"""A guarded run in the store: written during the run, resumed after a crash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentguard.errors import ConfigError
from agentguard.guard import Guard
from agentguard.localize.baselines.last_error import LastErrorLocalizer
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.store import Store


def call(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}


class Agency:
    def __init__(self, store: Store) -> None:
        self.booked: list[int] = []
        self.guard = Guard(
            localizer=LastErrorLocalizer(), recover=RecoveryPolicy(on_fail="rollback"), store=store
        )
        self.guard.tool(effect="write")(self.book)
        self.guard.tool(effect="read")(self.find)

    def book(self, seat: int) -> str:
        """Book a seat."""
        self.booked.append(seat)
        return f"seat {seat} is yours"

    def find(self, where: str) -> str:
        """Find a seat."""
        return "nothing found"

    def run(self, **options: Any) -> Any:
        return self.guard.run(
            "Book seats.", tools=[self.book, self.find], system="Be brief.", id="r", **options
        )


def test_stored_run_equals_recorded_run(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        agency = Agency(store)
        given = iter([call("book", seat=4), *[call("find", where="aisle")] * 3, "Seat 4 it is."])
        with agency.run() as run:
            while not run.done:
                run.tools(run.model(lambda messages: next(given)))
        store.flush(20)
        assert store.get_trajectory("r") == run.trajectory
        assert run.trajectory.branches
        (recovery,) = store.list_recoveries("r")
        assert (recovery.strategy, recovery.outcome, recovery.step) == ("rollback", "unknown", 4)
        assert recovery.data["plan"]["actions"][0] == {"action": "Rewind", "to_step": 4, "by": "truncate"}
        assert [row.detector for row in store.list_findings("r")] == [
            f.detector for f in run.session.findings
        ]
        assert store.get_run("r").length == len(run.trajectory.steps)  # type: ignore[union-attr]


def test_resumed_run_continues_and_books_nothing_twice(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        first = Agency(store).run()
        first.tools(first.model(lambda messages: call("book", seat=4)))
        first.model(lambda messages: call("book", seat=5))
        claim = first.session.begin_tool("book", {"seat": 5})
        first.session.end_tool(claim, "seat 5 is yours")  # then the process died: the turn is not stored
        store.flush(20)

        agency = Agency(store)
        second = agency.run(resume=True)
        assert second.messages == first.messages
        second.tools(second.model(lambda messages: call("book", seat=5)))
        assert second.messages[-1]["content"] == "seat 5 is yours"
        second.tools(second.model(lambda messages: call("book", seat=6)))
        assert agency.booked == [6]


def test_pending_hints_are_repeated_after_resume(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        run = Agency(store).run()
        for _ in range(3):
            run.tools(run.model(lambda messages: call("find", where="aisle")))
        run.tools(run.model(lambda messages: call("book", seat=4)))
        store.flush(20)
        assert any("rolled back" in str(message["content"]) for message in run.messages)
        assert Agency(store).run(resume=True).messages == run.messages


def test_resume_without_run_starts_one_and_without_store_is_an_error(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        assert len(Agency(store).run(resume=True).messages) == 2
    with pytest.raises(ConfigError, match="no store"):
        Guard(localizer=LastErrorLocalizer()).run("x", resume=True)


def test_address_of_a_store_is_rejected_with_the_remedy(tmp_path: Path) -> None:
    address: Any = tmp_path / "runs.db"
    with pytest.raises(ConfigError, match=r"Guard\(store=Store.open\("):
        Guard(store=address)
