"""The retries of all runs of a guard share budgets, so that they cannot keep a slow server slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentguard import Guard
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.runtime.session_config import RunEndObserver
from agentguard.trajectory.model import Trajectory


class Hall:
    """Agent with one read, and a count of its executions."""

    def __init__(self, guard: Guard | None = None) -> None:
        retry = RecoveryPolicy(escalations={"tool_error": ["roll_forward"]})
        self.guard = guard or Guard(recover=retry)
        self.guard.tool(effect="read")(self.find)
        self.is_slow, self.count = False, 0

    def find(self) -> str:
        """Find a seat."""
        self.count += 1
        if self.is_slow:
            raise TimeoutError("no answer")
        return "seat 4 is free"

    def call_llm(self, messages: list[dict[str, Any]]) -> Any:
        """Search once, then end."""
        if messages[-1]["role"] == "tool":
            return "I searched, and got: " + messages[-1]["content"]
        call = {"id": "1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
        return {"role": "assistant", "tool_calls": [call]}

    def count_executions(self, runs: int) -> int:
        """Return the number of executions of the read in some runs with one call each."""
        before = self.count
        for _ in range(runs):
            with self.guard.run("Find a seat.", tools=[self.find]) as run:
                while not run.done:
                    run.tools(run.model(self.call_llm))
        return self.count - before


@pytest.fixture
def hall() -> Hall:
    return Hall()


def test_failed_reads_of_many_runs_are_retried_ten_times(hall: Hall) -> None:
    hall.is_slow = True
    assert hall.count_executions(runs=30) == 30 + 10


def test_ten_successful_reads_permit_one_further_retry(hall: Hall) -> None:
    hall.is_slow = True
    hall.count_executions(runs=10)
    hall.is_slow = False
    assert hall.count_executions(runs=10) == 10
    hall.is_slow = True
    assert hall.count_executions(runs=3) == 3 + 1


def count_refused_ends(hall: Hall, *, is_slow: bool) -> int:
    """Return the number of repeated searches after refused ends, over thirty runs that end badly."""
    hall.is_slow = is_slow
    return hall.count_executions(runs=30) - 30


def refuse_until_two_searches(run: Trajectory) -> bool | str:
    """Accept a run with two successful searches, or with none."""
    found = sum("is free" in one.content for step in run.steps for one in step.observations)
    return found != 1 or "Search again."


def refuse_without_seat(run: Trajectory) -> bool | str:
    """Accept a run whose last message names a free seat."""
    return "is free" in run.steps[-1].content or "The answer has no seat: search again."


def build_hint_guard(accept: Callable[[Trajectory], bool | str], *observers: RunEndObserver) -> Guard:
    hint = RecoveryPolicy(escalations={"acceptance": ["hint"]})
    return Guard(accept=accept, recover=hint, run_observers=observers)


def test_refused_ends_after_failed_tools_lead_to_ten_further_calls() -> None:
    assert count_refused_ends(Hall(build_hint_guard(refuse_without_seat)), is_slow=True) == 10


def test_refused_ends_after_successful_tools_need_no_budget() -> None:
    assert count_refused_ends(Hall(build_hint_guard(refuse_until_two_searches)), is_slow=False) == 30


def test_accepted_ends_permit_as_many_further_recoveries() -> None:
    hall = Hall(build_hint_guard(refuse_without_seat))
    count_refused_ends(hall, is_slow=True)
    hall.is_slow = False
    assert hall.count_executions(runs=2) == 2
    hall.is_slow = True
    assert hall.count_executions(runs=5) == 5 + 2


def test_spent_budget_is_in_the_finding_of_the_refused_end() -> None:
    messages: list[str] = []
    guard = build_hint_guard(
        refuse_without_seat, lambda _run, findings: messages.extend(one.message for one in findings)
    )
    count_refused_ends(Hall(guard), is_slow=True)
    assert "the runs of this guard have exhausted their retry budget" in messages[-1]
    assert not any("retry budget" in message for message in messages[:10])
