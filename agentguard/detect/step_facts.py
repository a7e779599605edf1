"""Facts that are computed once for each step and shared by all detectors: results, actions, key and words.

A run has one of two shapes, with the same facts. In a *folded* run, a step contains the tool calls and their
observations. In a *message-shaped* run, the results are steps of the environment, and actions are code blocks
or ``Action:`` lines in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from json import dumps
from typing import Any, Generic, TypeVar, overload

import orjson

from agentguard.detect._text import extract_words, normalize_text, to_lower
from agentguard.detect.result_classification import (
    USABLE,
    ResultClassification,
    ResultStatus,
    classify_result,
)
from agentguard.trajectory.model import Source, Step, ToolCall

T = TypeVar("T")

_ACTION_LINE_PATTERN = re.compile(r"^[ \t>*]*Action(?: \d+)?\s*:[ \t]*(\S[^\n]*)$", re.MULTILINE)
_PROSE_LANGUAGES = frozenset(
    {"json", "markdown", "md", "text", "txt", "output", "csv", "yaml", "xml", "html", "plaintext"}
)
_MIN_TEXT_CHARS = 40
"""Minimum length of a move without an action; a repeated short text such as "Next" is not a repetition."""


class lazy_property(Generic[T]):
    """Property that is computed at its first use; the instance attribute then shadows this descriptor.

    Up to Python 3.11, `functools.cached_property` takes a lock at the first use. Only one thread uses an
    object with a `lazy_property`, and the lock costs more than most of the cached values.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> lazy_property[T]: ...

    @overload
    def __get__(self, owner: object, kind: type) -> T: ...

    def __get__(self, owner: object | None, kind: type) -> lazy_property[T] | T:
        if owner is None:
            return self
        value = self._compute(owner)
        owner.__dict__[self._name] = value
        return value


class ActionForm(StrEnum):
    """Notation of an action."""

    CALL = "call"
    CODE = "code"
    LINE = "line"


# Not frozen, although nothing changes them: each step creates both, and frozen ones cost three times as much.
@dataclass(slots=True, kw_only=True)
class Action:
    """Action of an agent: ``name`` is the tool (empty for code and text), ``key`` the canonical arguments."""

    form: ActionForm
    name: str
    key: str
    field: str
    start: int = 0
    end: int | None = None
    call: ToolCall | None = None


@dataclass(slots=True, kw_only=True)
class ToolResult:
    """Result of an action: the text is ``step.text(field)``, ``lower_text`` the same in lower case."""

    step: Step
    field: str
    lower_text: str
    tool: str | None
    classification: ResultClassification

    @property
    def error(self) -> ResultClassification | None:
        """Classification of the result if it is an error, otherwise None."""
        return self.classification if self.classification.is_error else None


class StepFacts:
    """Facts about one step.

    Args:
        step: the step.
        previous_results: results between the previous turn of an agent and this step.

    Attributes:
        was_proposed: whether the turn was checked before its tools ran; its facts of that time remain valid.
    """

    def __init__(self, step: Step, previous_results: tuple[ToolResult, ...] = ()) -> None:
        self.step = step
        self.previous_results = previous_results
        self.is_agent = step.source is Source.AGENT
        self.results = _collect_results(step)
        self.was_proposed = False

    def reuse_proposed(self, proposed: StepFacts) -> None:
        """Copy the facts of the proposed turn, if it is the same turn."""
        then, now = proposed.step, self.step
        if then.tool_calls is not now.tool_calls and not _are_same_calls(then.tool_calls, now.tool_calls):
            return
        if then.content != now.content or then.agent != now.agent or then.index != now.index:
            return
        if then.source is not now.source or then.modules != now.modules:
            return
        self.was_proposed = True
        properties = proposed.__dict__
        self.__dict__.update({name: properties[name] for name in _TURN_PROPERTIES if name in properties})

    @lazy_property
    def lower_text(self) -> str:
        """Content in lower case, offsets unchanged."""
        return to_lower(self.step.content)

    @lazy_property
    def actions(self) -> tuple[Action, ...]:
        """Tool calls; in a step without calls, code blocks and action lines of the content."""
        step = self.step
        if step.tool_calls:
            return tuple(_build_call_action(i, call) for i, call in enumerate(step.tool_calls))
        if not self.is_agent:
            return ()
        return tuple(_iter_text_actions(step))

    @lazy_property
    def call_results(self) -> tuple[tuple[ToolCall, ToolResult | None], ...]:
        """Each tool call of the step with its result, if the step contains the result."""
        calls, seen = self.step.tool_calls, self.step.observations
        results = self.results[-len(seen) :] if seen else ()
        by_id = {one.call_id: result for one, result in zip(seen, results, strict=True) if one.call_id}
        by_place = results if len(results) == len(calls) else ()
        return tuple(
            (call, by_id.get(call.id) or (by_place[i] if by_place else None)) for i, call in enumerate(calls)
        )

    @lazy_property
    def key(self) -> int | None:
        """Hash of the step's move: agent, tools and canonical arguments; None if the step is not a move."""
        if self.actions:
            return hash((*self.family, *[action.key for action in self.actions]))
        if not self.is_agent or len(self.step.content) < _MIN_TEXT_CHARS:
            return None
        return hash((self.step.agent, normalize_text(self.step.content)))

    @lazy_property
    def family(self) -> tuple[str, ...]:
        """Agent, and form and tool of each action; moves of different families are never similar."""
        return (self.step.agent, *[f"{action.form} {action.name}" for action in self.actions])

    @lazy_property
    def words(self) -> frozenset[str]:
        """Words of the move: of the actions, or of the content if there are no actions."""
        if self.actions:
            return extract_words(" ".join(f"{a.name} {a.key}" for a in self.actions).lower())
        return extract_words(self.lower_text)

    @lazy_property
    def outcome(self) -> int | None:
        """Digest of the results of this step; None if there is no result."""
        return hash(tuple(result.lower_text for result in self.results)) if self.results else None

    @lazy_property
    def has_error(self) -> bool:
        """True if a result of this step is an error."""
        return any(result.error is not None for result in self.results)


_TURN_PROPERTIES = ("lower_text", "actions", "key", "family", "words")
"""Facts that depend only on the turn, not on its results."""


def _are_same_calls(previous: tuple[ToolCall, ...], current: tuple[ToolCall, ...]) -> bool:
    """Compare by identity: ``==`` treats 1 and True, and 1 and 1.0, as the same argument."""
    return len(previous) == len(current) and all(a is b for a, b in zip(previous, current, strict=True))


def canonicalize_json(value: object) -> str:
    """Return the same text for equal JSON values, regardless of the order of keys."""
    try:
        option = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
        return orjson.dumps(value, default=_to_plain, option=option).decode()
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        return dumps(value, sort_keys=True, default=_to_plain)
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        return repr(value)
    except RecursionError:
        return f"<{type(value).__name__}, nested too deeply>"


def _to_plain(value: object) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


def _collect_results(step: Step) -> tuple[ToolResult, ...]:
    if not step.observations and step.source is not Source.ENVIRONMENT:
        return ()
    results = []
    if step.source is Source.ENVIRONMENT and step.content:
        lower_text = to_lower(step.content)
        results.append(_build_result(step, "content", lower_text, None, None))
    names = {call.id: call.name for call in step.tool_calls}
    for i, observation in enumerate(step.observations):
        tool = observation.tool or names.get(observation.call_id or "")
        lower_text = to_lower(observation.content)
        results.append(_build_result(step, f"observations[{i}]", lower_text, tool, observation.is_error))
    return tuple(results)


def _build_result(step: Step, field: str, lower_text: str, tool: str | None, flag: bool | None) -> ToolResult:
    classification = classify_result(lower_text, flag=flag)
    if step.unknown_parts and classification.status is ResultStatus.EMPTY:
        classification = USABLE  # the content may be in a part that the importer could not read
    return ToolResult(step=step, field=field, lower_text=lower_text, tool=tool, classification=classification)


def _build_call_action(index: int, call: ToolCall) -> Action:
    raw = call.raw_arguments or ""
    key = normalize_text(raw) if call.arguments is None else canonicalize_json(call.arguments)
    return Action(form=ActionForm.CALL, name=call.name, key=key, field=f"tool_calls[{index}]", call=call)


def _iter_text_actions(step: Step) -> list[Action]:
    text = step.content
    stated = step.modules.get("action", "")
    if stated.strip():
        position = text.find(stated)
        span = (position, position + len(stated)) if position >= 0 else (0, len(text))
        return [_build_line_action(normalize_text(stated), span)]
    if "```" in text:
        return [
            Action(
                form=ActionForm.CODE,
                name="",
                key=_canonicalize_code(body),
                field="content",
                start=start,
                end=end,
            )
            for language, body, start, end in iter_code_fences(text)
            if language not in _PROSE_LANGUAGES
        ]
    if "Action" in text:
        return [
            _build_line_action(normalize_text(line[1]), line.span(1))
            for line in _ACTION_LINE_PATTERN.finditer(text)
        ]
    return []


def iter_code_fences(text: str) -> Iterator[tuple[str, str, int, int]]:
    """Yield ``(language, body, start, end)`` of each closed code fence, in one pass over the text."""
    start = text.find("```")
    while start >= 0:
        close = text.find("```", start + 3)
        if close < 0:
            return
        head, line, body = text[start + 3 : close].partition("\n")
        if line:
            yield head.strip().lower(), body, start, close + 3
        start = text.find("```", close + 3)


def _build_line_action(key: str, span: tuple[int, int]) -> Action:
    return Action(form=ActionForm.LINE, name="", key=key, field="content", start=span[0], end=span[1])


def _canonicalize_code(body: str) -> str:
    return "\n".join(line.rstrip() for line in body.splitlines() if line.strip())
