"""Detector of statements that a JSON result refutes: counts, extremes and availability."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from agentguard.detect._text import find_sentence
from agentguard.detect.base import NO_FINDINGS, BaseDetector, Finding, RunRequirements
from agentguard.detect.quotes import quote_span
from agentguard.detect.result_classification import ResultStatus
from agentguard.detect.run_view import RunView
from agentguard.detect.step_facts import StepFacts, ToolResult
from agentguard.detect.value_tracking import parse_number
from agentguard.trajectory.model import Step

_COUNT_PATTERN = re.compile(
    r"\b(?:there (?:are|were)|found|(?:you|they|we) have|has|shows|lists) (?:exactly |a total of )?"
    r"(\d{1,4}) ((?:[a-z]+ ){0,2}[a-z]{3,}s)\b"
)
_EXTREME_PATTERN = re.compile(
    r"\b(cheapest|lowest|least expensive|shortest|smallest|earliest|fastest"
    r"|most expensive|highest|largest|longest|biggest)\b[^.\n]{0,120}?\$?(\d[\d,]*(?:\.\d+)?)\b"
)
_HIGH_WORDS = frozenset({"most expensive", "highest", "largest", "longest", "biggest"})
_AVAILABLE_PATTERN = re.compile(r"\b(?:is|are) (?:currently |still )?(?:available|in stock)\b")
_AVAILABLE_KEYS = frozenset({"available", "in_stock", "is_available", "instock"})
_MAX_CLAIMS = 12
_MAX_TEXT_CHARS = 8_000
_MAX_ITEMS = 500
_MAX_RESULT_CHARS = 60_000


def _has_counted_key(claim: re.Match[str], lower_result: str) -> bool:
    return f'{claim[2].rpartition(" ")[2]}"' in lower_result


def _has_number(_: re.Match[str], lower_result: str) -> bool:
    return any(digit in lower_result for digit in "0123456789")


def _has_false_flag(_: re.Match[str], lower_result: str) -> bool:
    return "false" in lower_result


_CLAIM_PATTERNS = (
    (_COUNT_PATTERN, ("there are ", "there were ", "found ", " have ", " has ", "shows ", "lists "),
     _has_counted_key),
    (_EXTREME_PATTERN, ("cheapest", "lowest", "least exp", "shortest", "smallest", "earliest", "fastest",
                        "most exp", "highest", "largest", "longest", "biggest"), _has_number),
    (_AVAILABLE_PATTERN, ("available", "in stock"), _has_false_flag),
)  # fmt: skip
"""Patterns of claims, substrings of which each claim contains one, and a test of the result for relevance."""


class RefutedClaim(BaseDetector):
    """Detector of a statement that the JSON result before it refutes."""

    name = "refuted_claim"
    summary = "a count, an extreme or an availability that the JSON result right before the statement refutes"
    codes = (
        "agentrx:misinterpretation_of_tool_output",
        "agent_error:reflection.outcome_misinterpretation",
        "fault_model:silent_corruption",
    )
    requirements = RunRequirements(turns=1, results=True)

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Compare the statements of a turn with the last JSON result before it."""
        facts = view.get_facts(step)
        if not step.content or not facts.previous_results:
            return NO_FINDINGS
        result = facts.previous_results[-1]
        if result.classification.status is not ResultStatus.OK:
            return NO_FINDINGS
        if not _may_refute(result.lower_text, facts.lower_text):
            return NO_FINDINGS
        value = _parse(result)
        if value is None:
            return NO_FINDINGS
        arrays = list(_iter_arrays(value))
        refuted = (
            _find_refuted_count(facts.lower_text, arrays)
            or _find_refuted_extreme(facts.lower_text, arrays)
            or _find_refuted_availability(facts.lower_text, arrays, value)
        )
        return (self._build_refuted_finding(facts, result, *refuted),) if refuted else NO_FINDINGS

    def _build_refuted_finding(
        self, facts: StepFacts, result: ToolResult, span: tuple[int, int], truth: str
    ) -> Finding:
        return self.build_finding(
            facts.step,
            0.45,
            f"The result contradicts the statement: {truth}.",
            correction=f"Read the result again: {truth}. Correct the statement and what depends on it.",
            evidence=(
                *quote_span(facts.step, "content", *find_sentence(facts.lower_text, *span)),
                *quote_span(result.step, result.field),
            ),
        )


_Refuted = tuple[tuple[int, int], str] | None
_Array = tuple[str, Sequence[Any]]


def _may_refute(lower_result: str, lower_text: str) -> bool:
    """Return whether a result may refute a claim of the text; the check avoids parsing long results."""
    return any(
        any(cue in lower_text for cue in cues)
        and any(is_about(claim, lower_result) for claim in pattern.finditer(lower_text, 0, _MAX_TEXT_CHARS))
        for pattern, cues, is_about in _CLAIM_PATTERNS
    )


def _parse(result: ToolResult) -> Any:
    text = result.lower_text.strip()
    if text[:1] not in ("{", "[") or len(text) > _MAX_RESULT_CHARS:
        return None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _iter_arrays(value: Any, name: str = "", depth: int = 0) -> Iterator[_Array]:
    """Yield ``(key, items)`` of every array, at most 4 levels deep."""
    if depth > 4:
        return
    if isinstance(value, list):
        yield name, value
        for item in value[:_MAX_ITEMS]:
            if isinstance(item, dict):
                yield from _iter_arrays(item, "", depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, dict | list):
                yield from _iter_arrays(item, key, depth + 1)


def _find_refuted_count(lower_text: str, arrays: Sequence[_Array]) -> _Refuted:
    """Find a number of things that differs from the length of the only array with their name."""
    for claim in list(_COUNT_PATTERN.finditer(lower_text, 0, _MAX_TEXT_CHARS))[:_MAX_CLAIMS]:
        noun = claim[2].rpartition(" ")[2]
        lengths = {len(items) for key, items in arrays if key.rpartition("_")[2] == noun}
        if len(lengths) == 1 and (length := lengths.pop()) < int(claim[1]):
            return claim.span(), f"it lists {length} {noun}"
    return None


def _find_refuted_extreme(lower_text: str, arrays: Sequence[_Array]) -> _Refuted:
    """Find an extreme value that an array has under one key, where another item is more extreme."""
    for claim in list(_EXTREME_PATTERN.finditer(lower_text, 0, _MAX_TEXT_CHARS))[:_MAX_CLAIMS]:
        stated = parse_number(claim[2])
        if stated is None or stated < 10:
            continue
        for _, items in arrays:
            for key, numbers in _collect_columns(items).items():
                if len(numbers) < 2 or stated not in numbers:
                    continue
                extreme = max(numbers) if claim[1] in _HIGH_WORDS else min(numbers)
                if extreme != stated:
                    return claim.span(), f"the {claim[1]} {key} is {extreme:g}"
    return None


def _collect_columns(items: Sequence[Any]) -> dict[str, list[float]]:
    columns: dict[str, list[float]] = {}
    for item in items[:_MAX_ITEMS]:
        if isinstance(item, Mapping):
            for key, value in item.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    columns.setdefault(key, []).append(float(value))
    return columns


def _find_refuted_availability(lower_text: str, arrays: Sequence[_Array], value: Any) -> _Refuted:
    """Find "is available" in a sentence that names an item whose flag is false."""
    claims = list(_AVAILABLE_PATTERN.finditer(lower_text, 0, _MAX_TEXT_CHARS))[:_MAX_CLAIMS]
    if not claims:
        return None
    items = [item for _, held in arrays for item in held[:_MAX_ITEMS] if isinstance(item, Mapping)]
    for item in [*items, value] if isinstance(value, Mapping) else items:
        if not any(item.get(key) is False for key in _AVAILABLE_KEYS):
            continue
        names = [
            str(v) for k, v in item.items() if k in ("id", "name", "title", "item_id") and len(str(v)) > 3
        ]
        for claim in claims:
            start, end = find_sentence(lower_text, *claim.span())
            name = next((n for n in names if n in lower_text[start:end]), None)
            if name is not None and "not" not in lower_text[start:end]:
                return claim.span(), f"{name} is not available"
    return None
