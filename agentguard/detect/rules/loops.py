"""Detectors of repeated moves: equal moves, similar moves, cycles of moves, and paraphrased calls."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any

from agentguard._bounded_map import BoundedMap
from agentguard.detect._text import jaccard_similarity
from agentguard.detect.base import NO_FINDINGS, BaseDetector, Finding, RunRequirements
from agentguard.detect.quotes import quote_move
from agentguard.detect.result_classification import ResultStatus
from agentguard.detect.run_view import Move, RunView
from agentguard.detect.step_facts import StepFacts, lazy_property
from agentguard.detect.tool_names import is_write_tool
from agentguard.detect.transient_results import are_transient
from agentguard.options import Options, option
from agentguard.trajectory.model import Step

_REPETITION = ("mast:step_repetition", "agent_error:planning.inefficient_plan")


@dataclass(slots=True)
class _Episode:
    """Loop in progress: the step of its latest occurrence, and the occurrences since its latest report."""

    step: int
    unreported: int = 0


class _LoopReports:
    """Schedule of the reports of loops: at the first occurrence, and after every ``interval`` further ones.

    Args:
        window: number of steps without an occurrence after which the next one is a new loop.
        interval: number of further occurrences until the next report.
    """

    def __init__(self, window: int, interval: int) -> None:
        self._window, self._interval = window, interval
        self._episodes = BoundedMap[object, _Episode](_MAX_EPISODES)

    def is_due(self, key: object, step: int) -> bool:
        """Record an occurrence of the loop ``key`` at ``step``; return True if a report is due."""
        episode = self._episodes.get(key)
        is_new = episode is None or step - episode.step > self._window
        if episode is None or is_new:
            episode = _Episode(step)
        self._episodes[key] = episode
        episode.step = step
        episode.unreported += 1
        if not is_new and episode.unreported < self._interval:
            return False
        episode.unreported = 0
        return True


_MAX_EPISODES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactLoopOptions(Options):
    """Options of `ExactLoop`."""

    repeat: int = option(
        3, bounds=(2, 40), description="repetitions that make a loop, and repetitions until the next report"
    )
    waits: int = option(
        24,
        bounds=(2, 48),
        description="repetitions that make a loop of calls with a pending status or a transient error",
    )
    window: int = option(12, bounds=(2, 48), description="latest moves that are compared")


class ExactLoop(BaseDetector):
    """Detector of a move that is repeated although its outcome does not change."""

    name = "exact_loop"
    requirements = RunRequirements(turns=3)
    summary = "the same call, code or text of an agent repeated although its outcome did not change"
    codes = _REPETITION
    default_options = ExactLoopOptions()
    options: ExactLoopOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.repeat, self.window = self.options.repeat, self.options.window
        self._reports = _LoopReports(4 * self.window, self.repeat)

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Compare the key of the move with those of the latest moves; a result that changes is progress."""
        facts = view.get_facts(step)
        if facts.key is None:
            return NO_FINDINGS
        equal_moves = [move for move in islice(reversed(view.moves), self.window) if move.key == facts.key]
        if len(equal_moves) < self.repeat:
            return NO_FINDINGS
        outcome = equal_moves[1].outcome
        if equal_moves[0].outcome not in (None, outcome):
            return NO_FINDINGS
        if any(move.outcome != outcome for move in equal_moves[1:]):
            return NO_FINDINGS
        is_waiting = are_transient(equal_moves[1].facts.results)
        if is_waiting and self._count_waits(facts.key, outcome, view) < self.options.waits:
            return NO_FINDINGS
        if not self._reports.is_due(facts.key, step.index):
            return NO_FINDINGS
        return (self._build_loop_finding(facts, equal_moves),)

    @staticmethod
    def _count_waits(key: int, outcome: int | None, view: RunView) -> int:
        """Return the number of the latest moves with this key and outcome, beyond the window as well."""
        equal_moves = (move for move in reversed(view.moves) if move.key == key)
        return sum(1 for _ in takewhile(lambda move: move.outcome in (None, outcome), equal_moves))

    def _build_loop_finding(self, facts: StepFacts, same: list[Move]) -> Finding:
        count, first = len(same), same[-2].step
        failed = any(move.has_error for move in same)
        probability = (0.7 if failed else 0.6) if facts.actions else 0.5
        tool = facts.actions[0].name if facts.actions else ""
        action = f"the call of {tool}" if tool else "the same action" if facts.actions else "the same message"
        return self.build_finding(
            first,
            min(0.9, probability + 0.05 * (count - self.repeat)),
            f"{facts.step.agent} repeated {action} {count} times with the same outcome.",
            correction=f"Choose another action: {action} has had the same outcome {count} times.",
            evidence=(*quote_move(facts), *quote_move(same[-2].facts)),
            noticed_at=facts.step.index,
            count=count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NearLoopOptions(Options):
    """Options of `NearLoop`."""

    repeat: int = option(3, bounds=(2, 40), description="near-equal moves that make a loop")
    window: int = option(8, bounds=(2, 24), description="latest moves that are compared")
    similarity: float = option(0.88, bounds=(0.5, 1.0), description="shared words, as Jaccard index")


class NearLoop(BaseDetector):
    """Detector of moves that differ in one or two words and have no new outcome."""

    name = "near_loop"
    requirements = RunRequirements(turns=3)
    summary = "moves of one agent that differ in one or two words and have the same outcome, or no outcome"
    codes = _REPETITION
    default_options = NearLoopOptions()
    options: NearLoopOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.repeat, self.window = self.options.repeat, self.options.window
        self.similarity = self.options.similarity
        self._reports = _LoopReports(4 * self.window, self.repeat)

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Compare the words of the move with the agent's latest moves of the same family."""
        facts = view.get_facts(step)
        if facts.key is None:
            return NO_FINDINGS
        if not facts.has_error and any(is_write_tool(call.name) for call in step.tool_calls):
            return NO_FINDINGS  # an acknowledged change is progress, although its result contains little
        family = facts.family
        family_moves = [m for m in islice(reversed(view.moves), self.window) if m.facts.family == family]
        if len(family_moves) < self.repeat or not self._is_stale(family_moves[1:]) or len(facts.words) < 6:
            return NO_FINDINGS
        similar_moves = [m for m in family_moves if m.key == facts.key or self._are_similar(m.facts, facts)]
        if len(similar_moves) < self.repeat or len({move.key for move in similar_moves}) < 2:
            return NO_FINDINGS
        outcomes = {move.outcome for move in similar_moves[1:]}
        if len(outcomes) > 1 and not all(move.has_error for move in similar_moves[1:]):
            return NO_FINDINGS
        if not self._reports.is_due(family, step.index):
            return NO_FINDINGS
        first = similar_moves[-2].step
        return (
            self.build_finding(
                first,
                0.55 if any(move.has_error for move in similar_moves) else 0.45,
                f"{step.agent} made {len(similar_moves)} nearly equal moves without a new result.",
                correction="Small changes do not help here. State what is missing, and change the approach.",
                evidence=(*quote_move(facts), *quote_move(similar_moves[-2].facts)),
                noticed_at=step.index,
                count=len(similar_moves),
            ),
        )

    def _is_stale(self, moves: list[Move]) -> bool:
        """Return True if the outcomes allow a loop: some repeat, or enough failed.

        The check avoids most comparisons.
        """
        outcomes = {move.outcome for move in moves}
        return (
            len(outcomes) < len(moves)
            or self.repeat == 2
            or sum(m.has_error for m in moves) >= self.repeat - 1
        )

    def _are_similar(self, other: StepFacts, this: StepFacts) -> bool:
        return jaccard_similarity(other.words, this.words) >= self.similarity


@dataclass(frozen=True, slots=True, kw_only=True)
class OscillationOptions(Options):
    """Options of `Oscillation`."""

    cycles: int = option(3, bounds=(2, 10), description="rounds that make an oscillation")
    period: int = option(3, bounds=(2, 4), description="length of the longest cycle, in moves")


class Oscillation(BaseDetector):
    """Detector of a repeated cycle of two or more different moves."""

    name = "oscillation"
    requirements = RunRequirements(turns=6)
    summary = "two to four different moves in a repeated cycle, with repeated outcomes"
    codes = _REPETITION
    default_options = OscillationOptions()
    options: OscillationOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.cycles, self.period = self.options.cycles, self.options.period
        self._reports = _LoopReports(12 * self.period, self.cycles * self.period)

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Search for a period in the latest keys."""
        if view.get_facts(step).key is None:
            return NO_FINDINGS
        moves = view.moves
        for period in range(2, self.period + 1):
            length = period * self.cycles
            if len(moves) < length or moves[-1].key != moves[-1 - period].key:
                continue
            tail = [moves[i - length] for i in range(length)]
            if _is_periodic(tail, period):
                return self._build_cycle_finding(step, tail, period)
        return NO_FINDINGS

    def _build_cycle_finding(self, step: Step, tail: list[Move], period: int) -> Iterable[Finding]:
        if not self._reports.is_due(frozenset(move.key for move in tail), step.index):
            return NO_FINDINGS
        first = tail[period].facts
        return (
            self.build_finding(
                first.step,
                0.65,
                f"{period} moves alternate for {self.cycles} rounds, and the outcomes repeat.",
                correction="You repeat a cycle of actions. Choose an action that is not one of them.",
                evidence=tuple(
                    quote for move in tail[period : 2 * period] for quote in quote_move(move.facts)
                ),
                noticed_at=step.index,
                period=period,
            ),
        )


def _is_periodic(tail: list[Move], period: int) -> bool:
    if len({move.key for move in tail[:period]}) != period:
        return False
    for i in range(len(tail) - period):
        if tail[i].key != tail[i + period].key:
            return False
    # The latest round may have no outcomes yet; the rounds before it must repeat.
    return all(tail[i].outcome == tail[i + period].outcome for i in range(len(tail) - 2 * period))


_CONTENT_WORD_PATTERN = re.compile(r"https?://[^\s\"'<>\\]{4,200}|[a-z0-9_]{3,}")
_FUNCTION_WORDS = frozenset((
    "the", "and", "for", "with", "from", "that", "this", "what", "which", "how", "who", "are", "was", "were",
    "not", "all", "any", "has", "have", "had", "its", "into", "about", "query", "search", "tool", "params",
    "name", "server", "com", "www", "command", "url", "path", "null", "true", "false",
))  # fmt: skip
_MIN_WORDS = 3
_MAX_QUERIES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ParaphrasedRepetitionOptions(Options):
    """Options of `ParaphrasedRepetition`."""

    repeat: int = option(3, bounds=(2, 20), description="similar calls that count")
    overlap: float = option(0.7, bounds=(0.5, 1.0), description="shared words, as share of the smaller set")


class ParaphrasedRepetition(BaseDetector):
    """Detector of calls that repeat an earlier call in other words, without a usable result."""

    name = "paraphrased_repetition"
    summary = "calls of one tool with the same content words, whose results are errors, empty or the same"
    codes = ("mast:step_repetition", "agent_error:planning.inefficient_plan")
    requirements = RunRequirements(turns=3, calls=True, results=True)
    default_options = ParaphrasedRepetitionOptions()
    options: ParaphrasedRepetitionOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._recent: list[_Query] = []
        self._reported_until = -1

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Compare the words of a call with the latest calls of the same tool without a new result."""
        facts = view.get_facts(step)
        if not step.tool_calls or facts.key is None or not view.moves:
            return NO_FINDINGS
        if any(is_write_tool(call.name) for call in step.tool_calls):
            self._recent.clear()
            return NO_FINDINGS
        query = _Query(view.moves[-1])
        similar = [q for q in self._recent if self._is_repetition(q, query)]
        self._recent.append(query)
        del self._recent[:-_MAX_QUERIES]
        if len(similar) + 1 < self.options.repeat or similar[0].step.index <= self._reported_until:
            return NO_FINDINGS
        self._reported_until = step.index
        first_repetition = [*similar, query][1]
        return (
            self.build_finding(
                first_repetition.step,
                0.35,
                f"{step.agent} made {len(similar) + 1} calls with the same words and had no new result.",
                correction="Other words for the same query do not help. Use another source or another tool.",
                evidence=(*quote_move(similar[0].move.facts), *quote_move(facts)),
                noticed_at=step.index,
                count=len(similar) + 1,
            ),
        )

    def _is_repetition(self, earlier: _Query, query: _Query) -> bool:
        """Return True if the earlier call had no new result and has the words of the later one."""
        outcome = earlier.move.outcome
        if not earlier.is_unproductive and (outcome is None or outcome != query.move.outcome):
            return False
        if earlier.move.facts.family != query.move.facts.family:
            return False
        small = min(len(earlier.words), len(query.words))
        return small >= _MIN_WORDS and len(earlier.words & query.words) >= self.options.overlap * small


class _Query:
    """Call with the content words of its arguments, which are extracted only for a comparison."""

    def __init__(self, move: Move) -> None:
        self.move = move
        self.step: Step = move.step
        results = move.facts.results
        self.is_unproductive = bool(results) and all(
            r.classification.status in _UNPRODUCTIVE_STATUSES for r in results
        )

    @lazy_property
    def words(self) -> frozenset[str]:
        """Content words and addresses of the arguments."""
        return _extract_content_words(" ".join(action.key for action in self.move.facts.actions).lower())


_UNPRODUCTIVE_STATUSES = frozenset({ResultStatus.EMPTY, ResultStatus.UNUSABLE})
"""Statuses without errors, because a changed call after an error is a correction."""


def _extract_content_words(lower_text: str) -> frozenset[str]:
    words = _CONTENT_WORD_PATTERN.findall(lower_text, 0, 2_000)
    return frozenset(words) - _FUNCTION_WORDS
