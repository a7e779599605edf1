"""The course of a guarded run: its record, what was found in it, and what was decided and done about it.

`agentguard.live.session.Session` adds the events to it. The parts of a session (what becomes of proposed
turns, reads made once more, the end) work on this, so that none of them needs the session itself. What begins
with an underscore is for them and for nobody else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from agentguard.detect.base import DetectorFailure, Finding
from agentguard.judge.safety import Assessment
from agentguard.live.clock import Clock
from agentguard.live.rules import Rules
from agentguard.live.suspicion import live_diagnosis, to_try
from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.recover.base import Capabilities, Outcome, Plan, Recovery, Situation, Stop, Tell, Tier
from agentguard.recover.budget import Account
from agentguard.recover.ledger import Ledger
from agentguard.recover.planner import DIAGNOSIS
from agentguard.trajectory.model import Source, Step, ToolSpec, Trajectory
from agentguard.trajectory.recorder import Recorder


class Course:
    """What is known of one guarded run, and what is done to it; a session without its events.

    Args:
        rules: what it goes by.
        meta: the run without steps: id, task, tools, system prompts.
        can: what the integration can do.
        ledger: what its tools do; one with nothing declared if absent.
        recorder: keeps the steps; one in memory if absent. One that has steps already is gone on with.
    """

    def __init__(
        self,
        rules: Rules,
        meta: Trajectory,
        can: Capabilities,
        *,
        ledger: Ledger | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.rules, self.can, self.id = rules, can, meta.id
        self.ledger = ledger if ledger is not None else Ledger()
        self.recorder = recorder if recorder is not None else Recorder(meta)
        self.account = Account(rules.budget)
        self.recoveries: list[Recovery] = []
        self.failures: list[DetectorFailure] = []
        self.findings: list[Finding] = []
        self.stopped: str | None = None
        self.assessment: Assessment | None = None
        """What was held of the last message of a run that wanted to end, where that was asked."""
        self.ended = False
        self.seconds = 0.0
        self.together: Callable[[], AbstractContextManager[Any]] | None = None
        """Makes what one event writes durable as one, where it is written to a store."""
        self.restorable: Callable[[], tuple[int, ...]] | None = None
        """The steps before which a fork can put back the state; None if it can before each."""
        self._lock = threading.RLock()
        self._pending: Finding | None = None
        self._told: list[str] = []
        self._offered: tuple[ToolSpec, ...] = ()
        self._watcher = rules.watcher(meta)
        self._clock = Clock()
        if len(self.recorder):
            self._replay()
        self.ledger.replay(self.run.steps)

    @property
    def run(self) -> Trajectory:
        """The run as it is now, the lines that were left among its branches."""
        return self.recorder.trajectory

    def __len__(self) -> int:
        """Steps on the live line."""
        return len(self.recorder)

    @property
    def untold(self) -> tuple[str, ...]:
        """What the agent was told, or is to be, since the last step."""
        return tuple(self._told)

    def _consider(self, trigger: Finding | None) -> None:
        """Keep what the next boundary has to deal with: one thing at a time, since it changes the others."""
        if trigger is not None and (self._pending is None or trigger.probability > self._pending.probability):
            self._pending = trigger

    def _plan(self, trigger: Finding) -> Plan | None:
        run = self.run
        return self._decide(self._diagnosis(run, trigger), run, trigger.detector, committed=True)

    def _decide(
        self,
        diagnosis: Diagnosis,
        run: Trajectory,
        trigger: str,
        *,
        committed: bool,
        below: float | None = None,
    ) -> Plan | None:
        diagnosis = self._credited(run, diagnosis, rank=False)
        situation = Situation(
            run=run,
            diagnosis=diagnosis,
            can=self.can,
            account=self.account,
            ledger=self.ledger,
            history=tuple(self.recoveries),
            committed=committed,
            repair=self.rules.repair,
            restorable=None if self.restorable is None else self.restorable(),
        )
        plan = self.rules.planner.plan(situation, trigger, below=below).plan
        spoke = () if plan is None else diagnosis.hypotheses[plan.hypothesis].schemata
        return replace(plan, schemata=spoke) if plan is not None and spoke else plan

    def _diagnosis(self, run: Trajectory, trigger: Finding) -> Diagnosis:
        """What was found and what the localizer holds likely, in the order in which to try it."""
        ranked: tuple[Hypothesis, ...] = ()
        if self.rules.localizer is not None:
            located = self.rules.localizer.locate(run, self.findings)
            ranked = self._credited(run, located, rank=True).hypotheses
        return live_diagnosis(run.id, to_try(trigger, ranked, self.recoveries, run.steps), self.findings)

    def _credited(self, run: Trajectory, diagnosis: Diagnosis, *, rank: bool) -> Diagnosis:
        credit = self.rules.credit
        if credit is None:
            return diagnosis
        said: Diagnosis | None = self._safely(lambda: credit(run, diagnosis, self.findings, rank=rank))
        return said or diagnosis

    def _tell(self, plan: Plan) -> None:
        for action in plan.actions:
            if isinstance(action, Stop):
                self.stopped = action.reason
            elif isinstance(action, Tell):
                self._told.append(action.text)

    def _note(
        self,
        plan: Plan,
        trigger: str,
        *,
        left: tuple[Step, ...],
        outcome: Outcome = Outcome.PENDING,
        cost: Mapping[str, float] | None = None,
    ) -> None:
        """Keep the recovery, and charge what the steps it leaves have cost."""
        spent = [step.usage for step in left if step.usage is not None]
        tokens = sum((usage.prompt_tokens or 0) + (usage.completion_tokens or 0) for usage in spent)
        calls = sum(step.source is Source.AGENT for step in left)
        seconds = self._clock.lost(left)
        self.account.charge(tokens=tokens, calls=calls, seconds=seconds)
        lost = {"steps": float(len(left)), "tokens": float(tokens), "calls": float(calls), "seconds": seconds}
        recovery = Recovery(
            run=self.id,
            id=self.recoveries[-1].id + 1 if self.recoveries else 0,
            plan=plan,
            trigger=trigger or DIAGNOSIS,
            at_step=len(self) + (1 if plan.tier is Tier.REJECT and plan.undone else 0),
            outcome=outcome,
            cost={**lost, **(cost or {})},
            schemata=plan.schemata,
            spent=self.account.spent,
        )
        self.recoveries.append(recovery)
        self._tell_observers(recovery)

    def _verify(self, *, accepted: bool | None = None, over: bool = False) -> None:
        for place, recovery in enumerate(self.recoveries):
            if recovery.outcome is not Outcome.PENDING:
                continue
            steps = recovery.at_step + self.rules.verification.window if over else len(self)
            outcome = self.rules.verification.outcome(recovery, self.findings, steps=steps, accepted=accepted)
            if outcome is not Outcome.PENDING:
                self.recoveries[place] = replace(recovery, outcome=outcome, spent=self.account.spent)
                self._tell_observers(self.recoveries[place])

    def _tell_observers(self, recovery: Recovery) -> None:
        for observer in self.rules.observers:
            self._safely(lambda observer=observer: observer(recovery))  # type: ignore[misc]

    def _replay(self) -> None:
        """Fresh detectors over the live line as it is now."""
        run = self.run
        tools = (*run.tools, *self._offered)
        self._watcher = self.rules.watcher(replace(run, steps=(), branches=(), tools=tools))
        self.findings = []
        for step in run.steps:
            self.findings += self._safely(lambda step=step: self._watcher.observe(step)) or ()  # type: ignore[misc]

    def _safely(self, part: Callable[[], Any]) -> Any:
        """Run a part of the guard; if it raises, note it, and stop the run where the policy wants that."""
        try:
            return part()
        except Exception as error:  # detectors, localizers, acceptance tests and observers may raise anything
            failure = DetectorFailure(detector="guard", step=len(self), error=type(error).__name__)
            self.failures.append(failure)
            if self.rules.on_error == "closed" and self.stopped is None:
                self.stopped = f"a part of the guard failed with {type(error).__name__}"
            return None

    def _timed(self) -> _Timed:
        return _Timed(self)


class _Timed:
    """Holds the course's lock and adds the time to its overhead."""

    __slots__ = ("_began", "_course", "_group")

    def __init__(self, course: Course) -> None:
        self._course = course
        self._began = 0.0
        self._group = course.together() if course.together is not None else None

    def __enter__(self) -> None:
        self._course._lock.acquire()
        self._began = time.perf_counter()
        if self._group is not None:
            self._group.__enter__()

    def __exit__(self, *_: object) -> None:
        if self._group is not None:
            self._group.__exit__(None, None, None)
        self._course.seconds += time.perf_counter() - self._began
        self._course._lock.release()
