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

import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from agentguard.detect.base import DetectorFailure
from agentguard.live import outcome
from agentguard.live.carrying import carry_out
from agentguard.live.course import Course
from agentguard.live.marks import marked, with_told
from agentguard.live.proposals import Elected, Proposals
from agentguard.live.reads import Reads
from agentguard.live.suspicion import serious
from agentguard.recover.base import Plan
from agentguard.recover.ledger import Claim, Ruling
from agentguard.trajectory.model import Source, Step, ToolSpec


class Session(Course):
    """One guarded run; thread-safe. It is made as a `Course` is, and goes on by its events."""

    # Both are made under the lock, by the events that each turn begins with, before any tool can use them.

    @cached_property
    def proposals(self) -> Proposals:
        """The turns that are not committed."""
        return Proposals(weakref.proxy(self))  # a cycle would keep what a run holds long after it

    @cached_property
    def reads(self) -> Reads:
        """The reads of a turn that are made once more."""
        return Reads(weakref.proxy(self), self.proposals.add_news)

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
                    carry_out(self, self.proposals, plan, trigger)
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
            step = self.recorder.add(self._marked(turn))
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
            return outcome.end(self, self.proposals, refusable=refusable)

    def _marked(self, turn: Step) -> Step:
        """A step that is committed now, with its number and all that is to be kept with it."""
        numbered = with_told(self, turn).at(len(self))
        marks = self.proposals.marked(numbered)
        if reads := self.reads.committed(numbered) if turn.source is Source.AGENT else []:
            marks["repaired"] = [*marks.get("repaired", []), *reads]
        return marked(numbered, marks)
