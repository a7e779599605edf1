"""Detectors of missing progress: no new results, a result fetched again, a lost topic, a repeated plan."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from agentguard._bounded_map import BoundedMap
from agentguard.detect._text import extract_words, jaccard_similarity, to_lower
from agentguard.detect.base import NO_FINDINGS, BaseDetector, Finding, RunRequirements
from agentguard.detect.quotes import quote_move, quote_span
from agentguard.detect.result_classification import ResultStatus
from agentguard.detect.run_view import Move, RunView
from agentguard.detect.step_facts import StepFacts, lazy_property
from agentguard.detect.tool_names import is_read_tool, is_write_tool
from agentguard.detect.transient_results import are_transient
from agentguard.options import Options, option
from agentguard.trajectory.model import Source, Step

_MAX_OUTCOMES = 10_000
_MAX_FETCHES = 500
_MAX_READ_CHARS = 2_000
_LONG_WORD_PATTERN = re.compile(r"[a-z]{4,}")
_PLAN_ITEM_PATTERN = re.compile(r"^[ \t]*(?:\d{1,2}[.)]|[-*])[ \t]+\S", re.MULTILINE)
_COMMON_STEMS = frozenset((
    "this", "that", "with", "from", "have", "will", "would", "could", "should", "there", "their",
    "what", "when", "where", "which", "about", "been", "were", "they", "them", "then", "than", "your",
    "please", "these", "those", "into", "some", "more", "most", "only", "also", "just", "make", "need",
    "using", "used", "like", "very", "here", "well", "each", "other", "such", "does", "want", "know",
    "let's", "okay", "sure", "thank", "thanks", "task", "answer", "question", "step", "steps",
))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NoProgressOptions(Options):
    """Options of `NoProgress`."""

    moves: int = option(6, bounds=(3, 100), description="consecutive moves without a new result")


class NoProgress(BaseDetector):
    """Detector of consecutive moves without new results."""

    name = "no_progress"
    requirements = RunRequirements(turns=7)
    summary = "consecutive moves whose outcomes are known, empty or errors"
    codes = ("mast:unaware_of_termination", "agent_error:reflection.progress_misjudge")
    default_options = NoProgressOptions()
    options: NoProgressOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.limit = self.options.moves
        self._known_outcomes = BoundedMap[int, None](_MAX_OUTCOMES)
        self._stale_moves: list[StepFacts] = []
        self._last_move: Move | None = None

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Judge the previous move, whose outcome is complete now."""
        if step.source is not Source.AGENT or not view.moves:
            return NO_FINDINGS
        previous, self._last_move = self._last_move, view.moves[-1]
        if previous is None or previous is self._last_move or previous.outcome is None:
            return NO_FINDINGS
        is_new = previous.outcome not in self._known_outcomes and not previous.has_error
        self._known_outcomes[previous.outcome] = None
        if is_new or not previous.facts.actions:
            self._stale_moves.clear()
            return NO_FINDINGS
        if are_transient(previous.facts.results):  # the agent waits; `exact_loop` bounds the waits
            return NO_FINDINGS
        self._stale_moves.append(previous.facts)
        if len(self._stale_moves) != self.limit:
            del self._stale_moves[self.limit + 1 :]
            return NO_FINDINGS
        return (self._build_stuck_finding(step),)

    def _build_stuck_finding(self, step: Step) -> Finding:
        first = self._stale_moves[0]
        return self.build_finding(
            first.step,
            0.55,
            f"{self.limit} consecutive actions had no new result: only errors, or known results.",
            correction="You make no progress. List what you know and what is missing, and change your plan.",
            evidence=(*quote_move(first), *quote_move(self._stale_moves[-1])),
            noticed_at=step.index,
            moves=self.limit,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalDriftOptions(Options):
    """Options of `GoalDrift`."""

    turns: int = option(5, bounds=(2, 50), description="consecutive turns off the topic")
    memory: int = option(6, bounds=(1, 32), description="latest steps whose replies count")


class GoalDrift(BaseDetector):
    """Detector of turns that share no word with the task, the plan or the results."""

    name = "goal_drift"
    requirements = RunRequirements(turns=5)
    summary = "consecutive turns that share no word with the task, the first turns or recent replies"
    codes = ("mast:task_derailment", "agent_error:action.misalignment")
    default_options = GoalDriftOptions()
    options: GoalDriftOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.turns, self.memory = self.options.turns, self.options.memory
        self._topic_stems: frozenset[str] | None = None
        self._plans: list[str] = []
        self._plan_stems: frozenset[str] | None = None
        self._off_topic_steps: list[Step] = []

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Compare the longer words of the turn, by their first five letters, with those of the topic."""
        facts = view.get_facts(step)
        if not facts.is_agent:
            return NO_FINDINGS
        if self._topic_stems is None:
            self._topic_stems = _extract_stems(to_lower(view.task))
        if len(self._topic_stems) < 3:
            return NO_FINDINGS
        turn_text = facts.lower_text or " ".join(action.key for action in facts.actions).lower()
        if any(word[0][:5] in self._topic_stems for word in _LONG_WORD_PATTERN.finditer(turn_text, 0, 400)):
            self._add_topic_text(turn_text)
            return NO_FINDINGS
        stems = _extract_stems(turn_text)
        if len(stems) < 5:
            return NO_FINDINGS
        if stems & self._collect_plan_stems() or self._answers_observation(stems, step, view):
            self._add_topic_text(turn_text)
            return NO_FINDINGS
        self._off_topic_steps.append(step)
        if len(self._off_topic_steps) != self.turns:
            return NO_FINDINGS
        return (self._build_drift_finding(self._off_topic_steps[0], step),)

    def _add_topic_text(self, lower_text: str) -> None:
        self._off_topic_steps.clear()
        if len(self._plans) < 3:
            self._plans.append(lower_text[:_MAX_READ_CHARS])
            self._plan_stems = None

    def _collect_plan_stems(self) -> frozenset[str]:
        """Return the stems of the first turns on the topic.

        The stems are computed only if a turn seems to be off the topic.
        """
        if self._plan_stems is None:
            self._plan_stems = frozenset().union(*map(_extract_stems, self._plans))
        return self._plan_stems

    def _answers_observation(self, stems: frozenset[str], step: Step, view: RunView) -> bool:
        for other in view.get_recent(self.memory):
            if other is step:
                continue
            facts = view.get_facts(other)
            replies = [result.lower_text for result in facts.results]
            if not facts.is_agent:
                replies.append(facts.lower_text)
            if any(stems & _extract_stems(reply) for reply in replies):
                return True
        return False

    def _build_drift_finding(self, first: Step, step: Step) -> Finding:
        return self.build_finding(
            first,
            0.4,
            f"{self.turns} consecutive turns share no word with the task or with any result.",
            correction="Read the task again, state which part of it is open, and work on that part.",
            evidence=(*quote_span(first, "content"), *quote_span(step, "content")),
            noticed_at=step.index,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedPlanOptions(Options):
    """Options of `RepeatedPlan`."""

    repeat: int = option(3, bounds=(2, 20), description="statements of one plan that count")
    similarity: float = option(0.85, bounds=(0.5, 1.0), description="shared words, as Jaccard")


class RepeatedFetch(BaseDetector):
    """Detector of a result that the agent already has and fetches again later."""

    name = "refetch"
    summary = "an identical reading call with an identical usable result, several moves after the first"
    codes = ("mast:loss_of_conversation_history", "mast:step_repetition")
    requirements = RunRequirements(turns=2, calls=True, results=True)

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self._results = BoundedMap[int, tuple[int, int | None]](_MAX_FETCHES)
        self._reported: set[int] = set()

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Compare a reading call with the earlier ones; a change in between makes a new result likely."""
        facts = view.get_facts(step)
        if facts.key is None or not step.tool_calls:
            return NO_FINDINGS
        if any(is_write_tool(call.name) for call in step.tool_calls):
            self._results.clear()
            return NO_FINDINGS
        if not _is_usable_read(facts):
            return NO_FINDINGS
        earlier = self._results.setdefault(facts.key, (step.index, facts.outcome))
        place, outcome = earlier
        if step.index - place < 3 or outcome != facts.outcome or facts.key in self._reported:
            return NO_FINDINGS
        self._reported.add(facts.key)
        cause = view.steps[place + 1]
        return (
            self.build_finding(
                cause if cause.source is Source.AGENT else step,
                0.2,
                f"{step.agent} fetches the result of step {place} again.",
                correction=f"Use the result of step {place}; do not fetch it again.",
                evidence=(*quote_move(facts), *quote_span(view.steps[place], "observations[0]")),
                noticed_at=step.index,
                first=place,
            ),
        )


def _is_usable_read(facts: StepFacts) -> bool:
    return all(
        is_read_tool(call.name) and result is not None and result.classification.status is ResultStatus.OK
        for call, result in facts.call_results
    )


class RepeatedPlan(BaseDetector):
    """Detector of a plan that the agent states repeatedly."""

    name = "repeated_plan"
    requirements = RunRequirements(turns=3)
    summary = "a plan (planning module, or three list items or more) that one agent restates nearly unchanged"
    codes = ("agent_error:planning.inefficient_plan", "mast:step_repetition")
    default_options = RepeatedPlanOptions()
    options: RepeatedPlanOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.repeat, self.similarity = self.options.repeat, self.options.similarity
        self._plans: list[_StatedPlan] = []

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Compare a stated plan with the latest stated plans."""
        if step.source is not Source.AGENT:
            return NO_FINDINGS
        text = _extract_plan(step, view.get_facts(step))
        if len(text) < 40:
            return NO_FINDINGS
        plan = _StatedPlan(step, text)
        comparable_plans = [other for other in self._plans if plan.is_comparable(other)]
        equal_steps: list[Step] = []
        if len(comparable_plans) + 1 >= self.repeat and len(plan.words) >= 10:
            equal_steps = [
                o.step for o in comparable_plans if jaccard_similarity(o.words, plan.words) >= self.similarity
            ]
        self._plans.append(plan)
        del self._plans[:-8]
        if len(equal_steps) + 1 < self.repeat:
            return NO_FINDINGS
        self._plans = [other for other in self._plans if other.step not in equal_steps]
        return (self._build_repeat_finding(equal_steps, step),)

    def _build_repeat_finding(self, same: list[Step], step: Step) -> Finding:
        first_repetition = [*same, step][1]
        return self.build_finding(
            first_repetition,
            0.4,
            f"{step.agent} stated the same plan {len(same) + 1} times.",
            correction="Do not restate the plan. Carry out its next item, or change the plan.",
            evidence=(*quote_span(same[0], "content"), *quote_span(step, "content")),
            noticed_at=step.index,
            count=len(same) + 1,
        )


def _extract_stems(lower_text: str) -> frozenset[str]:
    """Return the first five letters of words of four letters and more in the first 2,000 code points."""
    return frozenset(
        [
            word[:5]
            for word in _LONG_WORD_PATTERN.findall(lower_text, 0, _MAX_READ_CHARS)
            if word not in _COMMON_STEMS
        ]
    )


class _StatedPlan:
    """Plan as stated in one turn."""

    def __init__(self, step: Step, text: str) -> None:
        self.step, self.text = step, text

    @lazy_property
    def words(self) -> frozenset[str]:
        """Words of the plan; computed only if there is another plan to compare."""
        return extract_words(to_lower(self.text[:2_000]))

    def is_comparable(self, other: _StatedPlan) -> bool:
        """Return True if the other plan is by the same agent and of similar length.

        The check avoids most comparisons.
        """
        longest, shortest = max(len(self.text), len(other.text)), min(len(self.text), len(other.text))
        return self.step.agent == other.step.agent and shortest >= 0.7 * longest


def _extract_plan(step: Step, facts: StepFacts) -> str:
    """Return the text of the plan that a turn states; empty if there is no plan."""
    stated = step.modules.get("planning", "")
    if stated.strip():
        return stated
    if facts.actions or step.content.count("\n") < 2:
        return ""
    items = sum(1 for _ in islice(_PLAN_ITEM_PATTERN.finditer(step.content, 0, 4_000), 3))
    return step.content if items >= 3 else ""
