"""Whether the run gets anywhere: nothing new comes back, the topic is lost, the same plan is made again."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from typing import Any

from agentguard.detect.base import Finding, Needs
from agentguard.detect.facts import Facts
from agentguard.detect.lazy import lazy
from agentguard.detect.options import Option
from agentguard.detect.quotes import cite, cite_move
from agentguard.detect.rule import NOTHING, Rule
from agentguard.detect.text import lowered, similarity, words
from agentguard.detect.view import Move, RunView
from agentguard.trajectory.model import Source, Step

_MAX_OUTCOMES = 10_000
_READ = 2_000
_LONG_WORD = re.compile(r"[a-z]{4,}")
_PLAN_ITEM = re.compile(r"^[ \t]*(?:\d{1,2}[.)]|[-*])[ \t]+\S", re.MULTILINE)
_COMMON = frozenset((
    "this", "that", "with", "from", "have", "will", "would", "could", "should", "there", "their",
    "what", "when", "where", "which", "about", "been", "were", "they", "them", "then", "than", "your",
    "please", "these", "those", "into", "some", "more", "most", "only", "also", "just", "make", "need",
    "using", "used", "like", "very", "here", "well", "each", "other", "such", "does", "want", "know",
    "let's", "okay", "sure", "thank", "thanks", "task", "answer", "question", "step", "steps",
))  # fmt: skip


class NoProgress(Rule):
    """A row of moves after which nothing new came back."""

    name = "no_progress"
    needs = Needs(turns=7)
    sees = "a row of moves whose outcomes were all seen before, empty or errors"
    codes = ("mast:unaware_of_termination", "agent_error:reflection.progress_misjudge")
    declared = (
        Option(
            name="moves", shape="int", default=6, low=3, high=100, text="moves in a row without anything new"
        ),
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.limit = self.options.int("moves")
        self._seen: dict[int, None] = {}
        self._stale: list[Facts] = []
        self._last: Move | None = None

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Judge the move before this one, whose outcome is complete now."""
        if step.source is not Source.AGENT or not view.moves:
            return NOTHING
        previous, self._last = self._last, view.moves[-1]
        if previous is None or previous is self._last or previous.outcome is None:
            return NOTHING
        fresh = previous.outcome not in self._seen and not previous.failed
        self._seen[previous.outcome] = None
        if len(self._seen) > _MAX_OUTCOMES:
            del self._seen[next(iter(self._seen))]
        if fresh or not previous.facts.actions:
            self._stale.clear()
            return NOTHING
        self._stale.append(previous.facts)
        if len(self._stale) != self.limit:
            del self._stale[self.limit + 1 :]
            return NOTHING
        return (self._stuck(step),)

    def _stuck(self, step: Step) -> Finding:
        first = self._stale[0]
        return self.finding(
            first.step,
            0.55,
            f"{self.limit} actions in a row brought nothing new: errors, or results seen before.",
            correction="You are stuck. List what you know and what is missing, and try another way.",
            evidence=(*cite_move(first), *cite_move(self._stale[-1])),
            noticed_at=step.index,
            moves=self.limit,
        )


class GoalDrift(Rule):
    """Turns that no longer share a word with the task, the plan or what has come back."""

    name = "goal_drift"
    needs = Needs(turns=5)
    sees = "a row of turns that share no word with the task, the first turns or recent replies"
    codes = ("mast:task_derailment", "agent_error:action.misalignment")
    declared = (
        Option(name="turns", shape="int", default=5, low=2, high=50, text="turns in a row off the topic"),
        Option(
            name="memory", shape="int", default=6, low=1, high=32, text="latest steps whose replies count"
        ),
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.turns, self.memory = self.options.int("turns"), self.options.int("memory")
        self._topic: frozenset[str] | None = None
        self._plans: list[str] = []
        self._plan: frozenset[str] | None = None
        self._off: list[Step] = []

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Compare the turn's longer words, by their first five letters, with those of the topic."""
        facts = view.facts(step)
        if not facts.is_agent:
            return NOTHING
        if self._topic is None:
            self._topic = _stems(lowered(view.task))
        if len(self._topic) < 3:
            return NOTHING
        said = facts.low or " ".join(action.key for action in facts.actions).lower()
        if any(word[0][:5] in self._topic for word in _LONG_WORD.finditer(said, 0, 400)):
            self._on(said)
            return NOTHING
        stems = _stems(said)
        if len(stems) < 5:
            return NOTHING
        if stems & self._planned() or self._answers(stems, step, view):
            self._on(said)
            return NOTHING
        self._off.append(step)
        if len(self._off) != self.turns:
            return NOTHING
        return (self._drift(self._off[0], step),)

    def _on(self, said: str) -> None:
        self._off.clear()
        if len(self._plans) < 3:
            self._plans.append(said[:_READ])
            self._plan = None

    def _planned(self) -> frozenset[str]:
        """The stems of the first turns on the topic; made only once a turn seems to be off it."""
        if self._plan is None:
            self._plan = frozenset().union(*map(_stems, self._plans))
        return self._plan

    def _answers(self, stems: frozenset[str], step: Step, view: RunView) -> bool:
        for other in view.recent(self.memory):
            if other is step:
                continue
            facts = view.facts(other)
            replies = [result.low for result in facts.results]
            if not facts.is_agent:
                replies.append(facts.low)
            if any(stems & _stems(reply) for reply in replies):
                return True
        return False

    def _drift(self, first: Step, step: Step) -> Finding:
        return self.finding(
            first,
            0.4,
            f"{self.turns} turns in a row share no word with the task or with anything that came back.",
            correction="Read the task again, say which part of it is still open, and work on that part.",
            evidence=(*cite(first, "content"), *cite(step, "content")),
            noticed_at=step.index,
        )


class RepeatedPlan(Rule):
    """The same plan made again and again."""

    name = "repeated_plan"
    needs = Needs(turns=3)
    sees = "a plan (planning module, or three list items or more) that one agent restates nearly unchanged"
    codes = ("agent_error:planning.inefficient_plan", "mast:step_repetition")
    declared = (
        Option(
            name="repeat", shape="int", default=3, low=2, high=20, text="statements of one plan that count"
        ),
        Option(
            name="similarity", shape="number", default=0.85, low=0.5, high=1, text="shared words, as Jaccard"
        ),
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.repeat, self.similarity = self.options.int("repeat"), self.options.number("similarity")
        self._plans: list[_Plan] = []

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Compare a turn that states a plan with the latest ones that did."""
        if step.source is not Source.AGENT:
            return NOTHING
        text = _stated(step, view.facts(step))
        if len(text) < 40:
            return NOTHING
        plan = _Plan(step, text)
        alike = [other for other in self._plans if plan.comparable(other)]
        same: list[Step] = []
        if len(alike) + 1 >= self.repeat and len(plan.words) >= 10:
            same = [o.step for o in alike if similarity(o.words, plan.words) >= self.similarity]
        self._plans.append(plan)
        del self._plans[:-8]
        if len(same) + 1 < self.repeat:
            return NOTHING
        self._plans = [other for other in self._plans if other.step not in same]
        return (self._again(same, step),)

    def _again(self, same: list[Step], step: Step) -> Finding:
        return self.finding(
            same[0],
            0.4,
            f"{step.agent} stated the same plan {len(same) + 1} times.",
            correction="Stop restating the plan. Carry out its next item, or change what does not work.",
            evidence=(*cite(same[0], "content"), *cite(step, "content")),
            noticed_at=step.index,
            count=len(same) + 1,
        )


def _stems(low: str) -> frozenset[str]:
    """First five letters of the words of four letters and more, of the first 2,000 code points."""
    return frozenset([word[:5] for word in _LONG_WORD.findall(low, 0, _READ) if word not in _COMMON])


class _Plan:
    """A plan as one turn stated it."""

    def __init__(self, step: Step, text: str) -> None:
        self.step, self.text = step, text

    @lazy
    def words(self) -> frozenset[str]:
        """Its words; made only once there is something to compare them with."""
        return words(lowered(self.text[:2_000]))

    def comparable(self, other: _Plan) -> bool:
        """Whether the other is the same agent's and of about the same length: spares most comparing."""
        longest, shortest = max(len(self.text), len(other.text)), min(len(self.text), len(other.text))
        return self.step.agent == other.step.agent and shortest >= 0.7 * longest


def _stated(step: Step, facts: Facts) -> str:
    """The text of the plan that a turn states; empty if it states none."""
    stated = step.modules.get("planning", "")
    if stated.strip():
        return stated
    if facts.actions or step.content.count("\n") < 2:
        return ""
    items = sum(1 for _ in islice(_PLAN_ITEM.finditer(step.content, 0, 4_000), 3))
    return step.content if items >= 3 else ""
