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
the policy says that it must not (``on_guard_error="fail_closed"``).
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from agentguard import _sync_async
from agentguard.detect.base import DetectorFailure
from agentguard.recover.effect_ledger import EffectClaim, ExecutionDecision
from agentguard.recover.plan import RecoveryPlan
from agentguard.runtime import run_end
from agentguard.runtime.live_diagnosis import most_severe
from agentguard.runtime.pending_turn import PendingTurn, VoteResult
from agentguard.runtime.plan_execution import apply_plan
from agentguard.runtime.read_retry import ReadRetry
from agentguard.runtime.run_state import RunState
from agentguard.runtime.step_annotations import annotate_messages, annotate_step
from agentguard.trajectory.model import Source, Step, ToolSpec


class Session(RunState):
    """One guarded run; thread-safe. It is made as a `RunState` is, and goes on by its events."""

    # Both are made under the lock, by the events that each turn begins with, before any tool can use them.

    @cached_property
    def pending_turn(self) -> PendingTurn:
        """The turns that are not committed."""
        return PendingTurn(weakref.proxy(self))  # a cycle would keep what a run holds long after it

    @cached_property
    def read_retry(self) -> ReadRetry:
        """The reads of a turn that are made once more."""
        return ReadRetry(weakref.proxy(self), self.pending_turn.queue_message)

    def add_tools(self, tools: Iterable[ToolSpec]) -> None:
        """Tools that the run did not begin with are offered now: calls of them are no mistake."""
        with self._acquire_timed():
            run = self.run
            known = {tool.name for tool in (*run.tools, *self._added_tools)}
            new = tuple(tool for tool in tools if tool.name not in known)
            if new and run.tools:  # of a run without recorded tools nobody says what is none
                self._added_tools += new
                self._rerun_detectors()

    def check_boundary(self) -> RecoveryPlan | None:
        """Before the next model call: what is to be done first, if anything."""
        with self._acquire_timed():
            trigger, self._pending_trigger = self._pending_trigger, None
            if self.stop_reason is not None:
                return None
            plan: RecoveryPlan | None = None
            if trigger is not None:
                plan = self._run_safely(lambda: self._build_plan(trigger))
                if plan is not None:
                    apply_plan(self, self.pending_turn, plan, trigger)
            return self.pending_turn.attach_messages(plan)

    def propose(self, turn: Step) -> RecoveryPlan | None:
        """Judge a turn whose tools have not run.

        Returns:
            A plan: the turn is dropped and none of its tools runs. With `Reject` the model is asked again
            with what the plan tells; with `Escalate` a person is; with `Stop` the run ends. With `Repair` the
            turn is not dropped but repaired, and proposed anew; with `Sample` further candidates are asked
            for and given to `elect`. `agentguard.runtime.turn_resolution` does both. None: go on with the
            turn; what
            was found may still lead to a plan at the next boundary.
        """
        with self._acquire_timed():
            self.read_retry.reset()
            return self.pending_turn.evaluate(turn.with_index(len(self)))

    def count_votes(self, plan: RecoveryPlan, candidates: Sequence[Step | None]) -> VoteResult:
        """Count the votes of candidates for one turn.

        Args:
            plan: what `propose` returned, with a `Sample`.
            candidates: the turn that was proposed, and those asked for since, in the order of asking; None
                for one that could not be had.

        Raises:
            RecoveryError: no such election goes on.
        """
        with self._acquire_timed():
            return self.pending_turn.count_votes(plan, candidates)

    def record_failure(self, error: Exception) -> None:
        """Something that the guard had asked for failed; the run goes on."""
        with self._acquire_timed():
            failure = DetectorFailure(detector="guard", step=len(self), error=type(error).__name__)
            self.failures.append(failure)

    def begin_tool(self, tool: str, arguments: Mapping[str, Any]) -> EffectClaim:
        """Ask the ledger before a tool runs; see `ExecutionDecision` for what to do with the answer.

        Calls of one turn are asked for in their order, and before any of them runs.
        """
        with self._acquire_timed():
            return self.ledger.claim_call(tool, arguments, step=len(self))

    def end_tool(self, claim: EffectClaim, result: str, *, is_refused: bool = False) -> None:
        """Tell the ledger what came of a tool that was run.

        Args:
            claim: what `begin_tool` gave.
            result: what the tool returned, as text.
            refused: the tool failed and is known not to have done anything. An error that leaves that open is
                no refusal: do not call this at all, and the effect stays in doubt.
        """
        if claim.decision is not ExecutionDecision.RUN:
            return
        with self._acquire_timed():
            if is_refused:
                self.ledger.mark_failed(claim.effect)
            else:
                self.ledger.mark_done(claim.effect, result)

    def commit(self, turn: Step) -> Step:
        """Take in a turn with what its tools returned, or a turn of a user or the environment.

        Returns:
            The step as it was recorded, with its number.
        """
        with self._acquire_timed():
            step = self.recorder.add(self._annotate(turn))
            self._step_timer.record_step(step.index)
            found = self._run_safely(lambda: self._detector_runner.observe(step)) or ()
            self.findings += found
            self._update_outcomes()
            self.pending_turn.uncertainty = max((one.probability for one in found), default=0.0)
            self._queue_trigger(most_severe(found, self.config.finding_threshold))
            return step

    def end(self, *, is_refusable: bool = True) -> RecoveryPlan | None:
        """The agent wants to stop.

        Args:
            refusable: False where the outcome has been given away already: the acceptance test is asked, and
                what it says is kept, but the run has ended all the same.

        Returns:
            A plan if the end is refused; its actions are to be carried out and the run goes on. None: the run
            has ended (a second call does nothing).
        """
        with self._acquire_timed():
            if self.has_ended:
                return None
            return run_end.end_run(self, self.pending_turn, is_refusable=is_refusable)

    def _annotate(self, turn: Step) -> Step:
        """A step that is committed now, with its number and all that is to be kept with it."""
        numbered = annotate_messages(self, turn).with_index(len(self))
        marks = self.pending_turn.take_annotations(numbered)
        if reads := self.read_retry.build_annotations(numbered) if turn.source is Source.AGENT else []:
            marks["repaired"] = [*marks.get("repaired", []), *reads]
        return annotate_step(numbered, marks)


def end_session(session: Session) -> _sync_async.Effects[RecoveryPlan | None]:
    """`Session.end` for a body: aside, where it may wait for somebody."""
    if not session.config.may_block:
        return session.end()
    plan: RecoveryPlan | None = yield _sync_async.RunInThread(session.end)
    return plan


async def aend_session(session: Session) -> RecoveryPlan | None:
    """`Session.end` for asynchronous code: in a thread, where it may wait for somebody."""
    return await asyncio.to_thread(session.end) if session.config.may_block else session.end()
