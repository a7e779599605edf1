"""A run that has passed: what happened in it is kept, and nothing can be done about it any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from agentguard.recover.capabilities import Capabilities
from agentguard.recover.effect_ledger import Effect, EffectClaim, EffectLedger, ExecutionDecision
from agentguard.recover.plan import RecoveryPlan
from agentguard.runtime.session import Session
from agentguard.runtime.session_config import SessionConfig
from agentguard.trajectory.model import Step, Trajectory

_NO_CAPABILITIES: Final = Capabilities()
_EMPTY_LEDGER: Final = EffectLedger()
"""Of all such runs: nothing is ever entered in it."""

_ALWAYS_RUN: Final = EffectClaim(
    decision=ExecutionDecision.RUN, effect=Effect(key="", occurrence=0, tool="", arguments={}, step=0)
)


class StepSink(Protocol):
    """Takes the steps of a run as they are, and its end."""

    def add(self, step: Step) -> None:
        """Take the next step."""
        ...

    def end(self) -> None:
        """The run has ended."""
        ...


class PassiveSession(Session):
    """The session of such a run: its events are those of a `Session`, and none leads to a plan.

    Nothing of what a session has for acting is made (a budget, a ledger, candidates): most runs that pass are
    two steps long. No detector looks on: whoever takes the run has them look at it once it has ended.

    Args:
        rules: whose ``at_end`` is told of the run.
        meta: the run without steps.
        passed: takes what happens.
    """

    def __init__(self, config: SessionConfig, meta: Trajectory, sink: StepSink) -> None:
        self.config, self.capabilities, self.id = config, _NO_CAPABILITIES, meta.id
        self.ledger = _EMPTY_LEDGER
        self.recoveries, self.findings, self.failures = [], [], []
        self.stop_reason = self.assessment = self.unit_of_work = self.restorable_steps = None
        self.has_ended, self.overhead_s = False, 0.0
        self._meta, self._sink = meta, sink
        self._steps: list[Step] = []

    @property
    def run(self) -> Trajectory:
        """The run as it is now."""
        return replace(self._meta, steps=tuple(self._steps))

    def __len__(self) -> int:
        """Steps so far."""
        return len(self._steps)

    def check_boundary(self) -> RecoveryPlan | None:
        """Nothing is to be done."""
        return None

    def begin_tool(self, tool: str, arguments: Mapping[str, Any]) -> EffectClaim:
        """The tool has run already."""
        del tool, arguments
        return _ALWAYS_RUN

    def end_tool(self, claim: EffectClaim, result: str, *, is_refused: bool = False) -> None:
        """What it returned is in the step."""

    def commit(self, turn: Step) -> Step:
        """Take in a step; returns it with its number."""
        step = turn.with_index(len(self._steps))
        self._steps.append(step)
        self._sink.add(step)
        return step

    def end(self, *, is_refusable: bool = True) -> None:
        """The run has ended."""
        del is_refusable
        if self.has_ended:
            return
        self.has_ended = True
        self._sink.end()
        for told in self.config.run_end_observers:
            self._run_safely(lambda told=told: told(self.run, ()))  # type: ignore[misc]
