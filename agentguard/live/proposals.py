"""What becomes of a turn whose tools have not run: let through, refused, repaired, or voted on.

A part of `agentguard.live.session.Session`, which holds its lock around each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentguard.detect.base import Finding
from agentguard.errors import RecoveryError
from agentguard.live.course import Course
from agentguard.live.marks import change_of, changes_of, with_told
from agentguard.live.suspicion import hypothesis, live_diagnosis, serious
from agentguard.recover.base import (
    HandOver,
    Outcome,
    Plan,
    Reject,
    Repair,
    Sample,
    Stop,
    Tell,
    Tier,
    Variant,
)
from agentguard.recover.election import Candidate, Election, elect
from agentguard.recover.mend import mend_turn, mended
from agentguard.recover.planner import price
from agentguard.recover.protect import PROTECTION, protection
from agentguard.recover.wording import repaired_call
from agentguard.trajectory.model import Source, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Elected:
    """How an election goes on.

    Attributes:
        more: further candidates to ask for, each in its way; the other fields say nothing yet.
        turn: the turn to go on with; None if there is a plan.
        place: which of the candidates it is, from 0, the proposed turn.
        plan: what is done instead, since the candidates did not agree: as `Session.propose` would return it.
    """

    more: tuple[Variant, ...] = ()
    turn: Step | None = None
    place: int = 0
    plan: Plan | None = None


_BROKEN_CALL = "schema_violation"
"""Whose ladder says whether calls of candidates are repaired: the detector of those that fit no schema."""

_DISAGREED = (
    "Independent answers to this step did not agree. Check each argument against what was asked and what was "
    "observed; if something is not known, find it out before you act."
)


@dataclass(slots=True, kw_only=True)
class _Open:
    """An election that goes on."""

    turn: Step
    trigger: Finding
    plan: Plan
    sample: Sample
    recovery: int
    fit: list[Candidate]


class Proposals:
    """The turns of one session that are not committed.

    Args:
        course: of that session.
    """

    def __init__(self, course: Course) -> None:
        self._of = course
        self._open: _Open | None = None
        self._due: tuple[Plan, Finding] | None = None
        self._expected: tuple[Any, ...] = ()
        self._marks: dict[str, Any] = {}
        self._said: list[str] = []
        self._news: list[str] = []
        self.doubt = 0.0
        """The highest probability below the threshold of what was found on the last step."""
        self.lapsed = 0
        """Turns that should have been voted on, and were not since the budget was spent."""

    def judge(self, turn: Step) -> Plan | None:
        """As `Session.propose`; the turn has its number."""
        course, self._open = self._of, None
        if _shape(turn) != self._expected:
            self._forget()
        found = course._safely(lambda: course._watcher.foresee(turn)) or ()
        due, self._due = self._due, None
        if due is not None and (plan := self._voted(turn, *due)) is not None:
            return plan
        trigger = serious(found, course.rules.threshold)
        if trigger is not None:
            return self._refuse(turn, trigger)
        return self._mend(turn, found) or self._protect(turn, found)

    def elect(self, plan: Plan, candidates: Sequence[Step | None]) -> Elected:
        """As `Session.elect`."""
        held = self._open
        if held is None or held.plan is not plan:
            raise RecoveryError("elect: this plan has no election that goes on; propose the turn first")
        for one in candidates[len(held.fit) :]:
            held.fit.append(self._candidate(one, held.trigger, held.plan))
        state = elect(held.fit, held.sample)
        if state.ask:
            begin = len(held.fit) - 1
            return Elected(more=held.sample.variants()[begin : begin + state.ask])
        self._open = None
        self._close(held, state)
        if state.winner is None:
            return self._without_winner(held, state, candidates)
        return self._taken(held, state, state.winner, candidates[state.winner])

    def owe(self, plan: Plan, trigger: Finding) -> None:
        """The next turn is voted on: it takes the place of one that was taken back."""
        self._due = (plan, trigger)

    def marked(self, turn: Step) -> dict[str, Any]:
        """What to keep with a turn that is committed now; what the agent is to be told of it is news then."""
        if turn.source is not Source.AGENT:
            return {}
        marks, self._marks = self._marks, {}
        self._news += self._said
        self._said, self._expected = [], ()
        return marks

    def add_news(self, text: str) -> None:
        """Something that the agent is to be told at the next boundary."""
        self._news.append(text)

    def with_news(self, plan: Plan | None) -> Plan | None:
        """The plan of a boundary with what the agent is to be told of repairs; it may be that alone."""
        news, self._news = self._news, []
        if not news or (plan is not None and plan.undone):  # what was repaired is taken back, too
            return plan
        tells = tuple(Tell(text=text) for text in news)
        self._of._told += news
        if plan is not None:
            return replace(plan, actions=(*tells, *plan.actions))
        step = max(0, len(self._of) - 1)
        reason = "the agent is told what was repaired"
        return Plan(strategy="roll_forward", tier=Tier.REPAIR, actions=tells, step=step, reason=reason)

    def _forget(self) -> None:
        self._expected, self._marks, self._said = (), {}, []

    def _mend(self, turn: Step, found: Sequence[Finding]) -> Plan | None:
        """A repair where it needs less certainty than the policy's threshold, since it costs nothing."""
        planner = self._of.rules.planner
        mild = [one for one in found if planner.acts_from(one.detector) <= one.probability]
        trigger = max(mild, key=lambda one: one.probability, default=None)
        return None if trigger is None else self._refuse(turn, trigger, below=trigger.probability)

    def _protect(self, turn: Step, found: Sequence[Finding]) -> Plan | None:
        """An election where nothing was found, but an error would cost much, or is not unlikely."""
        course, protect = self._of, self._of.rules.protect
        if protect is None or not course.can.sample:
            return None
        doubt = max([self.doubt, *(one.probability for one in found)])
        if protect.judge:
            doubt = max(doubt, course._safely(lambda: self._judged(turn)) or 0.0)
        why = protect.why(turn, course.ledger, doubt)
        if why is None:
            return None
        trigger = protection(turn, why)
        plan = course._safely(lambda: self._planned(turn, trigger, None))
        sample = _sample(plan)
        if plan is None or sample is None:
            self.lapsed += 1
            return None
        first = self._candidate(turn, trigger, plan)
        if elect([first], sample).winner == 0:
            return None  # the primary of a recovery block was accepted: there is nothing to elect
        return self._begin(turn, plan, trigger, first)

    def _judged(self, turn: Step) -> float:
        course = self._of
        if course.rules.localizer is None:
            return 0.0
        run = course.run
        with_turn = replace(run, steps=(*run.steps, turn))
        return course.rules.localizer.locate(with_turn, course.findings).probability

    def _refuse(self, turn: Step, trigger: Finding, *, below: float | None = None) -> Plan | None:
        """What is done about a turn; None if nothing can be before its tools run."""
        course = self._of
        plan: Plan | None = course._safely(lambda: self._planned(turn, trigger, below))
        if plan is None:
            return None
        if any(isinstance(action, Repair) for action in plan.actions):
            return self._repair(turn, plan, trigger)
        if _sample(plan) is not None and not plan.undone:
            return self._begin(turn, plan, trigger)
        if not any(isinstance(action, Reject | HandOver | Stop) for action in plan.actions):
            return None  # the boundary after the tools sees to it
        self._forget()
        course.account.take(**price(plan))
        course._note(plan, trigger.detector, left=(turn,))
        course.recorder.add(with_told(course, turn))
        course.recorder.fork(turn.index, reason=plan.reason)
        course._tell(plan)
        return plan

    def _planned(self, turn: Step, trigger: Finding, below: float | None) -> Plan | None:
        course = self._of
        run = course.run
        with_turn = replace(run, steps=(*run.steps, turn))
        diagnosis = live_diagnosis(run.id, (hypothesis(trigger, turn.agent),), course.findings)
        return course._decide(diagnosis, with_turn, trigger.detector, committed=False, below=below)

    def _repair(self, turn: Step, plan: Plan, trigger: Finding) -> Plan:
        """The turn is repaired; the agent is told of it once the turn is committed."""
        course = self._of
        repairs = [action for action in plan.actions if isinstance(action, Repair)]
        course.account.take(**price(plan))
        course._note(plan, trigger.detector, left=())
        new = mended(turn, repairs)
        self._expected = _shape(new)
        self._marks.setdefault("repaired", []).extend(change_of(turn, one) for one in repairs)
        self._said += [action.text for action in plan.actions if isinstance(action, Tell)]
        return plan

    def _begin(self, turn: Step, plan: Plan, trigger: Finding, first: Candidate | None = None) -> Plan:
        course, sample = self._of, _sample(plan)
        assert sample is not None
        course.account.take(**price(plan))
        course._note(plan, trigger.detector, left=())
        self._open = _Open(
            turn=turn,
            trigger=trigger,
            plan=plan,
            sample=sample,
            recovery=len(course.recoveries) - 1,
            fit=[self._candidate(turn, trigger, plan) if first is None else first],
        )
        return plan

    def _voted(self, turn: Step, plan: Plan, trigger: Finding) -> Plan | None:
        """The election on a turn that takes the place of one that was taken back."""
        sample = _sample(plan)
        if sample is None or self._of.account.why_not(samples=sample.n - 1) is not None:
            self.lapsed += 1
            return None
        tier = Tier.SUBSTITUTE if sample.models else Tier.REJECT
        anew = replace(plan, tier=tier, actions=(sample,), step=turn.index, undone=0)
        return self._begin(turn, anew, replace(trigger, step=turn.index))

    def _candidate(self, turn: Step | None, trigger: Finding, plan: Plan) -> Candidate:
        """A candidate with what speaks against it: what is foreseen, and the strategy's own test."""
        course = self._of
        if turn is None:
            return Candidate(turn=None, unfit="the model that was asked failed")
        turn = self._readable(replace(turn, index=len(course)))
        found = course._safely(lambda: course._watcher.foresee(turn)) or ()
        wrong = serious(found, course.rules.threshold)
        if wrong is not None:
            return Candidate(turn=turn, unfit=wrong.message or wrong.detector)
        strategy = course.rules.planner.named(trigger.detector, plan.strategy)
        accept = getattr(strategy, "accept", None)
        if accept is None:
            return Candidate(turn=turn)
        run = course.run
        said = course._safely(lambda: accept(replace(run, steps=(*run.steps, turn))))
        refused = "the acceptance test refused it" if said in (False, None) else ""
        return Candidate(turn=turn, unfit=said if isinstance(said, str) else refused)

    def _close(self, held: _Open, state: Election) -> None:
        """Keep what the election has cost, and the candidates that were not taken."""
        course, asked = self._of, held.fit[1:]
        kept = 0 if state.winner is None else state.winner
        left = [(place, one.turn) for place, one in enumerate(held.fit) if place != kept and one.turn]
        used = [turn.usage for _, turn in left if turn.usage is not None]
        tokens = sum((usage.prompt_tokens or 0) + (usage.completion_tokens or 0) for usage in used)
        course.account.charge(tokens=tokens, calls=len(asked), samples=len(asked))
        for place, turn in left:
            why = held.fit[place].unfit or "it was not taken"
            course.recorder.add(replace(turn, index=held.turn.index))
            course.recorder.fork(held.turn.index, reason=f"{held.plan.strategy}: {why}")
        cost = {
            **course.recoveries[held.recovery].cost,
            "tokens": float(tokens),
            "calls": float(len(asked)),
            "candidates": float(len(held.fit)),
            "votes": float(state.votes),
        }
        outcome = Outcome.REFUTED if state.winner is None else Outcome.PENDING
        spent = course.account.spent
        known = replace(course.recoveries[held.recovery], cost=cost, outcome=outcome, spent=spent)
        course.recoveries[held.recovery] = known
        course._tell_observers(known)

    def _taken(self, held: _Open, state: Election, place: int, given: Step | None) -> Elected:
        """The candidate that is gone on with; ``given`` is what its model said, before it was repaired."""
        turn = held.fit[place].turn or held.turn
        if place:
            self._forget()  # what was repaired was another turn
        self._expected = _shape(turn)
        self._marks["elected"] = {
            "strategy": held.plan.strategy,
            "candidates": len(held.fit),
            "votes": state.votes,
            "taken": place,
            "reason": state.reason,
        }
        if given is not None and (changes := changes_of(given, turn)):
            self._marks.setdefault("repaired", []).extend(changes)
            said = "; ".join(f"{one['original']} is now {one['repaired']}" for one in changes)
            self._said.append(repaired_call(said))
        return Elected(turn=turn, place=place)

    def _without_winner(self, held: _Open, state: Election, candidates: Sequence[Step | None]) -> Elected:
        """The next rung; where there is none, what most of them want."""
        trigger = held.trigger
        if trigger.detector == PROTECTION:
            trigger = replace(trigger, message=f"{trigger.message} {state.reason}.", correction=_DISAGREED)
        plan = self._refuse(held.turn, trigger)
        if plan is not None:
            return Elected(plan=plan)
        place = state.leader if held.trigger.detector == PROTECTION and state.leader is not None else 0
        return self._taken(held, state, place, candidates[place])

    def _readable(self, turn: Step) -> Step:
        """A candidate with its calls repaired where they can be read in one way, if the policy repairs calls.

        Else those who say the same in another form would not agree.
        """
        course = self._of
        strategy = course.rules.planner.named(_BROKEN_CALL, "roll_forward")
        if not (course.can.repair and getattr(strategy, "calls", False)):
            return turn
        run = course.run
        made = course._safely(lambda: mend_turn(turn, run))
        return turn if made is None else mended(turn, made[0])


def _sample(plan: Plan | None) -> Sample | None:
    actions = () if plan is None else plan.actions
    return next((action for action in actions if isinstance(action, Sample)), None)


def _shape(turn: Step) -> tuple[Any, ...]:
    """What of a turn an integration may not change between a repair or an election and the commit."""
    return turn.content, tuple((call.name, call.arguments) for call in turn.tool_calls)
