"""A guarded run while it goes on: four events in, plans out.

An integration reduces its framework to these events and calls them in this order, a turn at a time::

    plan = session.boundary()            before the model is called: carry out the plan's actions first
    plan = session.propose(turn)         the model has answered, no tool has run: a plan here refuses the
                                         turn, repairs it, or has candidates vote (`session.elect`)
    claim = session.begin_tool(...)      before each tool; session.end_tool(claim, ...) after it
    session.commit(turn)                 the turn with what its tools returned
    plan = session.end()                 the agent wants to stop: a plan here refuses the end

A plan that is handed out counts as carried out: the recorded run has been forked and the ledger rewound when
the call returns, and the integration makes the agent's own messages and state agree with it. Steps are
counted as in the trajectory: a turn that is made again after a rollback has the number of the turn that it
replaces. Once ``session.stopped`` says why, the integration ends the run; look at it after each event.

Nothing here waits, calls a model or touches a disk; a part that fails is noted and the run goes on, unless
the policy says that it must not (``on_error="closed"``).
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from agentguard.detect.base import DetectorFailure, Finding
from agentguard.judge.safety import Assessment
from agentguard.live import ending
from agentguard.live.clock import Clock
from agentguard.live.marks import repair_line, with_marks
from agentguard.live.proposals import Elected, Proposals
from agentguard.live.reads import Reads
from agentguard.live.rules import Rules
from agentguard.live.suspicion import live_diagnosis, serious, to_try
from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.recover.base import (
    Capabilities,
    Outcome,
    Plan,
    Recovery,
    Sample,
    Situation,
    Stop,
    Tell,
    Tier,
)
from agentguard.recover.budget import Account
from agentguard.recover.ledger import Claim, Ledger, Ruling
from agentguard.recover.planner import DIAGNOSIS, price
from agentguard.recover.verify import resumed_at
from agentguard.trajectory.model import Source, Step, ToolSpec, Trajectory
from agentguard.trajectory.recorder import Recorder


class Session:
    """One guarded run; thread-safe.

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
        me = weakref.proxy(self)  # a cycle would keep what a run holds long after it
        self.proposals, self.reads = Proposals(me), Reads(me)
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

    def offer(self, tools: Iterable[ToolSpec]) -> None:
        """Tools that the run did not begin with are offered now: calls of them are no mistake."""
        with self._timed():
            run = self.run
            known = {tool.name for tool in (*run.tools, *self._offered)}
            new = tuple(tool for tool in tools if tool.name not in known)
            if new and run.tools:  # of a run without recorded tools nobody says what is none
                self._offered += new
                self._replay()

    def boundary(self) -> Plan | None:
        """Before the next model call: what is to be done first, if anything."""
        with self._timed():
            trigger, self._pending = self._pending, None
            if self.stopped is not None:
                return None
            plan: Plan | None = None
            if trigger is not None:
                plan = self._safely(lambda: self._plan(trigger))
                if plan is not None:
                    self._carry_out(plan, trigger)
            return self.proposals.with_news(plan)

    def propose(self, turn: Step) -> Plan | None:
        """Judge a turn whose tools have not run.

        Returns:
            A plan: the turn is dropped and none of its tools runs. With `Reject` the model is asked again
            with what the plan tells; with `HandOver` a person is; with `Stop` the run ends. With `Repair` the
            turn is not dropped but repaired, and proposed anew; with `Sample` further candidates are asked
            for and given to `elect`. `agentguard.live.choosing` does both. None: go on with the turn; what
            was found may still lead to a plan at the next boundary.
        """
        with self._timed():
            self.reads.begin()
            return self.proposals.judge(turn.at(len(self)))

    def elect(self, plan: Plan, candidates: Sequence[Step | None]) -> Elected:
        """Count the votes of candidates for one turn.

        Args:
            plan: what `propose` returned, with a `Sample`.
            candidates: the turn that was proposed, and those asked for since, in the order of asking; None
                for one that could not be had.

        Raises:
            RecoveryError: no such election goes on.
        """
        with self._timed():
            return self.proposals.elect(plan, candidates)

    def note_failure(self, error: Exception) -> None:
        """Something that the guard had asked for failed; the run goes on."""
        with self._timed():
            failure = DetectorFailure(detector="guard", step=len(self), error=type(error).__name__)
            self.failures.append(failure)

    def begin_tool(self, tool: str, arguments: Mapping[str, Any]) -> Claim:
        """Ask the ledger before a tool runs; see `Ruling` for what to do with the answer.

        Calls of one turn are asked for in their order, and before any of them runs.
        """
        with self._timed():
            return self.ledger.begin(tool, arguments, step=len(self))

    def end_tool(self, claim: Claim, result: str, *, refused: bool = False) -> None:
        """Tell the ledger what came of a tool that was run.

        Args:
            claim: what `begin_tool` gave.
            result: what the tool returned, as text.
            refused: the tool failed and is known not to have done anything. An error that leaves that open is
                no refusal: do not call this at all, and the effect stays in doubt.
        """
        if claim.ruling is not Ruling.RUN:
            return
        with self._timed():
            if refused:
                self.ledger.failed(claim.effect)
            else:
                self.ledger.done(claim.effect, result)

    def commit(self, turn: Step) -> Step:
        """Take in a turn with what its tools returned, or a turn of a user or the environment.

        Returns:
            The step as it was recorded, with its number.
        """
        with self._timed():
            step = self.recorder.add(with_marks(self, turn))
            self._clock.committed(step.index)
            found = self._safely(lambda: self._watcher.observe(step)) or ()
            self.findings += found
            self._verify()
            self.proposals.doubt = max((one.probability for one in found), default=0.0)
            self._consider(serious(found, self.rules.threshold))
            return step

    def end(self, *, refusable: bool = True) -> Plan | None:
        """The agent wants to stop.

        Args:
            refusable: False where the outcome has been given away already: the acceptance test is asked, and
                what it says is kept, but the run has ended all the same.

        Returns:
            A plan if the end is refused; its actions are to be carried out and the run goes on. None: the run
            has ended (a second call does nothing).
        """
        with self._timed():
            if self.ended:
                return None
            return ending.end(self, refusable=refusable)

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

    def _carry_out(self, plan: Plan, trigger: Finding) -> None:
        keep = len(self)
        self.account.take(**price(plan))
        self._tell(plan)
        self._note(plan, trigger.detector, left=self.run.steps[keep - plan.undone :])
        if plan.undone and (back := resumed_at(self.recoveries[-1])) < keep:
            self.recorder.fork(back, reason=plan.reason)
            self.ledger.rewind(back)
            self._replay()
        repair_line(self, plan)
        if any(isinstance(action, Sample) for action in plan.actions):
            self.proposals.owe(plan, trigger)

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
    """Holds the session's lock and adds the time to its overhead."""

    __slots__ = ("_began", "_group", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._began = 0.0
        self._group = session.together() if session.together is not None else None

    def __enter__(self) -> None:
        self._session._lock.acquire()
        self._began = time.perf_counter()
        if self._group is not None:
            self._group.__enter__()

    def __exit__(self, *_: object) -> None:
        if self._group is not None:
            self._group.__exit__(None, None, None)
        self._session.seconds += time.perf_counter() - self._began
        self._session._lock.release()
