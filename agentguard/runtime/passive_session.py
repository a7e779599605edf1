"""Passive session: it records the events of a run and never returns a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from agentguard.recover.capabilities import Capabilities
from agentguard.recover.effect_ledger import EffectClaim, EffectLedger, ExecutionDecision
from agentguard.recover.effect_store import Effect
from agentguard.recover.plan import RecoveryPlan
from agentguard.runtime.session import Session
from agentguard.runtime.session_config import SessionConfig
from agentguard.trajectory.model import Step, Trajectory

_NO_CAPABILITIES: Final = Capabilities()
_EMPTY_LEDGER: Final = EffectLedger()
"""Shared by all passive sessions: they make no entries."""

_ALWAYS_RUN: Final = EffectClaim(
    decision=ExecutionDecision.RUN, effect=Effect(key="", occurrence=0, tool="", arguments={}, step=0)
)


class StepSink(Protocol):
    """Receiver of the steps of a run and of its end."""

    def add(self, step: Step) -> None:
        """Receive the next step."""
        ...

    def end(self) -> None:
        """Receive the end of the run."""
        ...


class PassiveSession(Session):
    """Session that only records: its events are those of a `Session`, and none leads to a plan.

    It creates neither a budget account nor its own ledger, since most such runs have only two steps. No
    detector runs during the session; the receiver of the steps runs the detectors after the end.

    Args:
        config: configuration with the ``clock`` and the ``run_end_observers``; the rest is not used.
        meta: the run without steps.
        sink: receiver of the steps.
    """

    def __init__(self, config: SessionConfig, meta: Trajectory, sink: StepSink) -> None:
        self.config, self.capabilities, self.id = config, _NO_CAPABILITIES, meta.id
        self.ledger = _EMPTY_LEDGER
        self.recoveries, self.findings, self.failures = [], [], []
        self.stop_reason = self.assessment = self.unit_of_work = self.restorable_steps = None
        self.has_ended, self.overhead_s = False, 0.0
        self._meta, self._sink = meta, sink
        self._steps: list[Step] = []
        self._turn_started_at = None

    @property
    def run(self) -> Trajectory:
        """The run as recorded so far; without its steps once it has ended."""
        return replace(self._meta, steps=tuple(self._steps))

    def __len__(self) -> int:
        """Return the number of steps so far."""
        return len(self._steps)

    def check_boundary(self) -> RecoveryPlan | None:
        """Start the next turn; return None, since a passive session has no plans."""
        self.start_turn()
        return None

    def begin_tool(self, tool: str, arguments: Mapping[str, Any]) -> EffectClaim:
        """Return a claim that permits the call, since the tool has already run."""
        del tool, arguments
        return _ALWAYS_RUN

    def end_tool(
        self, claim: EffectClaim, result: str, *, is_refused: bool = False, has_failed: bool | None = None
    ) -> None:
        """Do nothing: the step contains the result."""

    def commit(self, turn: Step) -> Step:
        """Record a step and return it with its index and times."""
        step = self.stamp_times(turn).with_index(len(self._steps))
        self._steps.append(step)
        self._sink.add(step)
        return step

    def end(self, *, is_refusable: bool = True) -> None:
        """End the run and release its steps, since its conversation may wait; a second call does nothing."""
        del is_refusable
        if self.has_ended:
            return
        self.has_ended = True
        self._sink.end()
        for told in self.config.run_end_observers:
            self.run_safely(told, self.run, ())
        self._steps = []
