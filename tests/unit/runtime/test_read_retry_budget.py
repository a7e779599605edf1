"""The retried reads of all runs of a guard share a budget, so that they cannot keep a slow server slow."""

from __future__ import annotations

from typing import Any

import pytest

from agentguard import Guard
from agentguard.recover.recovery_policy import RecoveryPolicy


class Hall:
    """Agent with one read, and a count of its executions."""

    def __init__(self) -> None:
        self.guard = Guard(recover=RecoveryPolicy(escalations={"tool_error": ["roll_forward"]}))
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
        if messages[-1]["role"] != "user":
            return "I searched."
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
