"""Repetition by paraphrase: calls whose arguments have the same content words in other words or order."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from agentguard._lazy import lazy_property
from agentguard.detect.base import NO_FINDINGS, BaseDetector, Finding, RunRequirements
from agentguard.detect.evidence import quote_move
from agentguard.detect.result_classification import ResultStatus
from agentguard.detect.run_view import Move, RunView
from agentguard.detect.tool_names import is_write_tool
from agentguard.options import Options, option
from agentguard.trajectory.model import Step

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
    """Detector of calls that repeat an earlier call in other words while nothing usable comes back."""

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
        """Compare the words of a call with the latest fruitless calls of the same tool."""
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
                f"{step.agent} made {len(similar) + 1} calls with the same words and got nothing new.",
                correction="Other words for the same query do not help. Use another source or another tool.",
                evidence=(*quote_move(similar[0].move.facts), *quote_move(facts)),
                noticed_at=step.index,
                count=len(similar) + 1,
            ),
        )

    def _is_repetition(self, earlier: _Query, query: _Query) -> bool:
        """Return True if the earlier call brought nothing new, and has the words of the later one."""
        outcome = earlier.move.outcome
        if not earlier.is_fruitless and (outcome is None or outcome != query.move.outcome):
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
        self.is_fruitless = bool(results) and all(r.classification.status in _FRUITLESS for r in results)

    @lazy_property
    def words(self) -> frozenset[str]:
        """Content words and addresses of the arguments."""
        return _extract_content_words(" ".join(action.key for action in self.move.facts.actions).lower())


_FRUITLESS = frozenset({ResultStatus.EMPTY, ResultStatus.UNUSABLE})
"""An error is not one of them: a changed call after an error is a correction."""


def _extract_content_words(lower_text: str) -> frozenset[str]:
    words = _CONTENT_WORD_PATTERN.findall(lower_text, 0, 2_000)
    return frozenset(words) - _FUNCTION_WORDS
