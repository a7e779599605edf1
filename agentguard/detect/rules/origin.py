"""Where did this value come from: data flow from what the agent was given to what it passes on.

The idea of checking the arguments of an action against everything the agent was given is common to taint
tracking; "invention of new information" as a failure of its own is a category of AgentRx (Microsoft).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from agentguard.detect.base import Finding
from agentguard.detect.facts import Action, Facts, Form
from agentguard.detect.options import Option
from agentguard.detect.phrases import made_up
from agentguard.detect.quotes import cite, cite_value
from agentguard.detect.rule import NOTHING, Rule
from agentguard.detect.values import number
from agentguard.detect.view import RunView
from agentguard.trajectory.model import Step

_EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+\Z")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?Z?)?\Z")
_ID = re.compile(r"(?=[^\d]*\d)#?[A-Za-z0-9][A-Za-z0-9_\-#]{3,63}\Z")
_NAMED_ID = re.compile(
    r"(?:^|_)(?:ids?|number|code|key|uuid|account|reference|ref|sku|phone|zip|card)$|[a-z]Id$"
)
_CREATES = re.compile(
    r"(?:^|_)(?:create|new|add|insert|register|write|generate|make|put|init)(?:_|$)", re.IGNORECASE
)
_TEXTUAL = re.compile(
    r"(?:^|_)(?:code|command|cmd|script|query|expression|path|file\w*|content|text|url|regex)$"
)
_LITERALS = re.compile(r"=\s*[\[{(][^\n]{0,400}\d")
_GET_IT = "Do not go on with assumed data. Get the real data, or say that it could not be had."
_MIN_NUMBER = 100
_MAX_VALUES = 60
_MAX_MET = 5_000


class UnknownOrigin(Rule):
    """An argument whose value the agent was never given, or data that it admits to have made up."""

    name = "unknown_origin"
    sees = (
        "an identifier, e-mail address, date or number in an argument that appears in no task, prompt, tool, "
        "user message or result before; data admitted to be assumed or simulated"
    )
    codes = (
        "agentrx:invention_of_new_information",
        "agent_error:memory.hallucination",
        "agent_error:action.parameter_error",
    )
    declared = (
        Option(name="numbers", shape="flag", default=True, text="check numbers from 100 on as well"),
        Option(name="dates", shape="flag", default=True, text="check dates as well"),
        Option(name="ignore", shape="list", default=(), text="names of arguments that are not checked"),
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.numbers, self.dates = self.options.flag("numbers"), self.options.flag("dates")
        self.ignore = frozenset(str(name) for name in self.options.items("ignore"))
        self._met: dict[str, None] = {}
        self._made_up = 0
        self._ahead: list[Finding] | None = None

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Trace the values of each call; in turns without calls look for data admitted to be made up."""
        facts = view.facts(step)
        if not facts.is_agent:
            return NOTHING
        ahead, self._ahead = self._ahead, None
        if step.tool_calls and view.values.complete:
            found = ahead if facts.foreseen and ahead is not None else self._traced(step, view)
            for one in found:
                self._met[one.data["value"]] = None
            while len(self._met) > _MAX_MET:
                del self._met[next(iter(self._met))]
            return found
        return self._admitted(facts) if step.content and self._made_up < 20 else NOTHING

    def foresee(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Trace the values of each call."""
        self._ahead = None
        if not step.tool_calls or not view.values.complete:
            return NOTHING
        self._ahead = self._traced(step, view)
        return self._ahead

    def _traced(self, step: Step, view: RunView) -> list[Finding]:
        found: dict[str, Finding] = {}
        for action in view.facts(step).actions:
            if action.call is not None and action.call.arguments:
                for one in self._trace(step, action, view):
                    found.setdefault(one.data["value"], one)
        return list(found.values())

    def _trace(self, step: Step, action: Action, view: RunView) -> Iterator[Finding]:
        arguments = action.call.arguments if action.call else None
        for name, value in islice(_leaves(arguments), _MAX_VALUES):
            probability = self._weight(name, value, action.name)
            if probability == 0 or name in self.ignore:
                continue
            text = str(value)
            if text not in self._met and not view.values.knows(text):
                yield self._unknown(step, action, name, value, probability)

    def _weight(self, name: str, value: object, tool: str) -> float:
        """How surely a value of this kind must have come from somewhere; 0 is: not checked."""
        if not isinstance(value, str):
            amount = number(value)
            large = amount is not None and _MIN_NUMBER <= abs(amount) < 1e15
            return 0.45 if self.numbers and large else 0.0
        if not 4 <= len(value) <= 128 or value.isalpha():
            return 0.0
        kind = self._kind(name, value)
        return kind * 0.5 if kind and _CREATES.search(tool) else kind

    def _kind(self, name: str, value: str) -> float:
        if _DATE.match(value):
            weight = 0.3 if self.dates else 0.0
        elif _EMAIL.match(value):
            weight = 0.6
        elif _ID.match(value):
            weight = 0.6 if _NAMED_ID.search(name) else 0.2 if value.isdigit() else 0.4
        else:
            return 0.0
        return 0.0 if _TEXTUAL.search(name) else weight

    def _unknown(self, step: Step, action: Action, name: str, value: object, probability: float) -> Finding:
        return self.finding(
            step,
            probability,
            f"The value of {name} in the call of {action.name} appears nowhere before: it may be made up.",
            correction=f"Do not guess {name}. Look it up or ask for it, then call {action.name} again.",
            evidence=cite_value(step, action.field, value, name),
            tool=action.name,
            argument=name,
            value=str(value),
        )

    def _admitted(self, facts: Facts) -> Iterable[Finding]:
        span = made_up(facts.low)
        if span is None:
            return NOTHING
        self._made_up += 1
        coded = any(a.form is Form.CODE and _LITERALS.search(a.key) for a in facts.actions)
        return (
            self.finding(
                facts.step,
                0.55 if coded else 0.35,
                f"{facts.step.agent} works with data it says it assumed or simulated.",
                correction=_GET_IT,
                evidence=cite(facts.step, "content", *span),
                codes=self.codes[:2],
            ),
        )


def _leaves(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, object]]:
    """Yield ``(nearest key, value)`` of every text and number in JSON arguments, at most 8 levels deep."""
    if depth > 8:
        return
    if isinstance(value, (str, int, float)):
        if not isinstance(value, bool):
            yield name, value
    elif isinstance(value, (dict, Mapping)):
        for key, item in value.items():
            yield from _leaves(item, str(key), depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value[:_MAX_VALUES]:
            yield from _leaves(item, name, depth + 1)
