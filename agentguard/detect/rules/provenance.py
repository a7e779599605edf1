"""Detector of values without a source in the inputs of the agent (data flow).

The comparison of arguments with all inputs is common in taint tracking. The failure "invention of new
information" is a category of AgentRx (Microsoft).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from agentguard._bounded_map import BoundedMap
from agentguard.detect.base import NO_FINDINGS, BaseDetector, Finding
from agentguard.detect.phrase_patterns import FABRICATION_CUES, find_fabrication
from agentguard.detect.quotes import quote_span, quote_value
from agentguard.detect.run_content import RunContent
from agentguard.detect.run_view import RunView
from agentguard.detect.step_facts import Action, ActionForm, StepFacts
from agentguard.detect.value_tracking import parse_number
from agentguard.options import Options, option
from agentguard.trajectory.model import Step

_EMAIL_PATTERN = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+\Z")
_DATE_PATTERN = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?Z?)?\Z")
_ID_PATTERN = re.compile(r"(?=[^\d]*\d)#?[A-Za-z0-9][A-Za-z0-9_\-#]{3,63}\Z")
_ID_NAME_PATTERN = re.compile(
    r"(?:^|_)(?:ids?|number|code|key|uuid|account|reference|ref|sku|phone|zip|card)$|[a-z]Id$"
)
_CREATING_TOOL_PATTERN = re.compile(
    r"(?:^|_)(?:create|new|add|insert|register|write|generate|make|put|init)(?:_|$)", re.IGNORECASE
)
_TEXT_ARGUMENT_PATTERN = re.compile(
    r"(?:^|_)(?:code|command|cmd|script|query|expression|path|file\w*|content|text|url|regex)$"
)
_SETTING_PATTERN = re.compile(
    r"(?:^|_)(?:timeout|limit|offset|max|min|page|depth|delay|wait|retries|width|height|lines|tokens|results)(?:_|$)"
    r"|^timeout|^max[A-Z]|^num(?:_|[A-Z])|(?:Limit|Timeout|Ms|Tokens|Results)$"
)
"""Names of arguments that configure a call; the agent chooses their numbers."""
_LITERALS = re.compile(r"=\s*[\[{(][^\n]{0,400}\d")
_CORRECTION = "Do not continue with assumed data. Get the real data, or report that it is not available."
_NUMBER_PATTERN = re.compile(r"(?<![\w.-])\d[\d,]*(?:\.\d+)?(?![\w-])")
_MIN_CHECKED_NUMBER = 100
_MAX_SUM_STEPS, _MAX_SUM_CHARS, _MAX_SUM_NUMBERS = 30, 6_000, 100
_MAX_VALUES = 60
_MAX_REPORTED_VALUES = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownProvenanceOptions(Options):
    """Options of `UnknownProvenance`."""

    numbers: bool = option(True, description="check numbers from 100 on as well")
    dates: bool = option(True, description="check dates as well")
    ignore: tuple[Any, ...] = option((), description="names of arguments that are not checked")


class UnknownProvenance(BaseDetector):
    """Detector of an argument whose value has no source, and of admittedly invented data."""

    name = "unknown_origin"
    summary = (
        "an identifier, e-mail address, date or number in an argument that appears in no task, prompt, tool, "
        "user message or result before; data admitted to be assumed or simulated"
    )
    codes = (
        "agentrx:invention_of_new_information",
        "agent_error:memory.hallucination",
        "agent_error:action.parameter_error",
    )
    default_options = UnknownProvenanceOptions()
    options: UnknownProvenanceOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.numbers, self.dates = self.options.numbers, self.options.dates
        self.ignore = frozenset(str(name) for name in self.options.ignore)
        self._reported_values = BoundedMap[str, None](_MAX_REPORTED_VALUES)
        self._reported_fabrication = 0
        self._proposed_findings: list[Finding] | None = None

    @classmethod
    def can_find(cls, content: RunContent) -> bool:
        """Return True if the run has calls, or a turn contains the words of an admission."""
        return content.data.calls or content.has_cue(FABRICATION_CUES)

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Trace the values of each call; in turns without calls, search for an admission of invented data."""
        facts = view.get_facts(step)
        if not facts.is_agent:
            return NO_FINDINGS
        proposed_findings, self._proposed_findings = self._proposed_findings, None
        if step.tool_calls and view.values.is_complete and view.has_input:
            findings = (
                proposed_findings
                if facts.was_proposed and proposed_findings is not None
                else self._trace_step(step, view)
            )
            for finding in findings:
                self._reported_values[finding.data["value"]] = None
            return findings
        return (
            self._find_admitted_fabrication(facts)
            if step.content and self._reported_fabrication < 20
            else NO_FINDINGS
        )

    def check_proposed(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Trace the values of each call."""
        self._proposed_findings = None
        if not step.tool_calls or not view.values.is_complete or not view.has_input:
            return NO_FINDINGS
        self._proposed_findings = self._trace_step(step, view)
        return self._proposed_findings

    def _trace_step(self, step: Step, view: RunView) -> list[Finding]:
        finding_of_value: dict[str, Finding] = {}
        for action in view.get_facts(step).actions:
            if action.call is not None and action.call.arguments:
                for finding in self._trace_action(step, action, view):
                    finding_of_value.setdefault(finding.data["value"], finding)
        return list(finding_of_value.values())

    def _trace_action(self, step: Step, action: Action, view: RunView) -> Iterator[Finding]:
        arguments = action.call.arguments if action.call else None
        for name, value in islice(_iter_leaves(arguments), _MAX_VALUES):
            probability = self._estimate_probability(name, value, action.name)
            if probability == 0 or name in self.ignore:
                continue
            text = str(value)
            if text not in self._reported_values and not self._is_known(value, text, view):
                yield self._build_provenance_finding(step, action, name, value, probability)

    def _is_known(self, value: object, text: str, view: RunView) -> bool:
        return view.values.has_value(text) or (
            not isinstance(value, str) and _is_sum_of_known_numbers(parse_number(value), view)
        )

    def _estimate_probability(self, name: str, value: object, tool: str) -> float:
        """Return the probability that a value of this kind must have a source.

        0 means that the detector does not check the value.
        """
        if not isinstance(value, str):
            amount = parse_number(value)
            large = amount is not None and _MIN_CHECKED_NUMBER <= abs(amount) < 1e15
            return 0.45 if self.numbers and large and not _SETTING_PATTERN.search(name) else 0.0
        if not 4 <= len(value) <= 128 or value.isalpha():
            return 0.0
        kind = self._classify_value(name, value)
        return kind * 0.5 if kind and _CREATING_TOOL_PATTERN.search(tool) else kind

    def _classify_value(self, name: str, value: str) -> float:
        if _DATE_PATTERN.match(value):
            weight = 0.3 if self.dates else 0.0
        elif _EMAIL_PATTERN.match(value):
            weight = 0.6
        elif _ID_PATTERN.match(value):
            weight = 0.6 if _ID_NAME_PATTERN.search(name) else 0.2 if value.isdigit() else 0.4
        else:
            return 0.0
        return 0.0 if _TEXT_ARGUMENT_PATTERN.search(name) else weight

    def _build_provenance_finding(
        self, step: Step, action: Action, name: str, value: object, probability: float
    ) -> Finding:
        return self.build_finding(
            step,
            probability,
            f"The value of {name} in the call of {action.name} does not occur before: it may be invented.",
            correction=f"Do not guess {name}. Look it up or ask for it, then call {action.name} again.",
            evidence=quote_value(step, action.field, value, name),
            tool=action.name,
            argument=name,
            value=str(value),
        )

    def _find_admitted_fabrication(self, facts: StepFacts) -> Iterable[Finding]:
        span = find_fabrication(facts.lower_text)
        if span is None:
            return NO_FINDINGS
        self._reported_fabrication += 1
        coded = any(a.form is ActionForm.CODE and _LITERALS.search(a.key) for a in facts.actions)
        return (
            self.build_finding(
                facts.step,
                0.55 if coded else 0.35,
                f"{facts.step.agent} uses data that it admits to have assumed or simulated.",
                correction=_CORRECTION,
                evidence=quote_span(facts.step, "content", *span),
                codes=self.codes[:2],
            ),
        )


def _is_sum_of_known_numbers(amount: float | None, view: RunView) -> bool:
    """Return True if a number is a sum, a difference or a small multiple of numbers of the latest steps."""
    if amount is None:
        return False
    numbers: set[float] = set()
    for step in view.get_recent(_MAX_SUM_STEPS):
        for text in (step.content, *(observation.content for observation in step.observations)):
            numbers |= _parse_numbers(text)
    return any(
        amount - number in numbers
        or number - amount in numbers
        or amount / 2 == number
        or amount / 3 == number
        for number in numbers
    )


@lru_cache(maxsize=256)
def _parse_numbers(text: str) -> frozenset[float]:
    """Return the first numbers of a text; consecutive calls read the same texts."""
    matches = islice(_NUMBER_PATTERN.finditer(text, 0, _MAX_SUM_CHARS), _MAX_SUM_NUMBERS)
    return frozenset(number for match in matches if (number := parse_number(match[0])) is not None)


def _iter_leaves(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, object]]:
    """Yield ``(nearest key, value)`` of every text and number in JSON arguments, at most 8 levels deep."""
    if depth > 8:
        return
    if isinstance(value, (str, int, float)):
        if not isinstance(value, bool):
            yield name, value
    elif isinstance(value, (dict, Mapping)):
        for key, item in value.items():
            yield from _iter_leaves(item, str(key), depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value[:_MAX_VALUES]:
            yield from _iter_leaves(item, name, depth + 1)
