"""A run that has passed: what happened in it is kept, and nothing can be done about it any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from agentguard.live.rules import Rules
from agentguard.live.session import Session
from agentguard.recover.base import Capabilities, Plan
from agentguard.recover.ledger import Claim, Effect, Ledger, Ruling
from agentguard.trajectory.model import Step, Trajectory

_NOTHING: Final = Capabilities()
_LEDGER: Final = Ledger()
"""Of all such runs: nothing is ever entered in it."""

_CLAIM: Final = Claim(ruling=Ruling.RUN, effect=Effect(key="", occurrence=0, tool="", arguments={}, step=0))


class Passed(Protocol):
    """Takes the steps of a run as they are, and its end."""

    def add(self, step: Step) -> None:
        """Take the next step."""
        ...

    def end(self) -> None:
        """The run has ended."""
        ...


class Observing(Session):
    """The session of such a run: its events are those of a `Session`, and none leads to a plan.

    Nothing of what a session has for acting is made (a budget, a ledger, candidates): most runs that pass are
    two steps long. No detector looks on: whoever takes the run has them look at it once it has ended.

    Args:
        rules: whose ``at_end`` is told of the run.
        meta: the run without steps.
        passed: takes what happens.
    """

    def __init__(self, rules: Rules, meta: Trajectory, passed: Passed) -> None:
        self.rules, self.can, self.id = rules, _NOTHING, meta.id
        self.ledger = _LEDGER
        self.recoveries, self.findings, self.failures = [], [], []
        self.stopped = self.assessment = self.together = self.restorable = None
        self.ended, self.seconds = False, 0.0
        self._meta, self._passed = meta, passed
        self._steps: list[Step] = []

    @property
    def run(self) -> Trajectory:
        """The run as it is now."""
        return replace(self._meta, steps=tuple(self._steps))

    def __len__(self) -> int:
        """Steps so far."""
        return len(self._steps)

    def boundary(self) -> Plan | None:
        """Nothing is to be done."""
        return None

    def begin_tool(self, tool: str, arguments: Mapping[str, Any]) -> Claim:
        """The tool has run already."""
        del tool, arguments
        return _CLAIM

    def end_tool(self, claim: Claim, result: str, *, refused: bool = False) -> None:
        """What it returned is in the step."""

    def commit(self, turn: Step) -> Step:
        """Take in a step; returns it with its number."""
        step = turn.at(len(self._steps))
        self._steps.append(step)
        self._passed.add(step)
        return step

    def end(self, *, refusable: bool = True) -> None:
        """The run has ended."""
        del refusable
        if self.ended:
            return
        self.ended = True
        self._passed.end()
        for told in self.rules.at_end:
            self._safely(lambda told=told: told(self.run, ()))  # type: ignore[misc]
