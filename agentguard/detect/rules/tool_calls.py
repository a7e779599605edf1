"""Detectors of invalid calls: an unknown tool, arguments that violate the schema, unparsable text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import orjson

from agentguard.detect.base import NO_FINDINGS, BaseDetector, Finding, RunRequirements
from agentguard.detect.quotes import quote_span, quote_value
from agentguard.detect.run_content import RunContent
from agentguard.detect.run_view import RunView
from agentguard.detect.step_facts import Action, iter_code_fences
from agentguard.options import Options, option
from agentguard.trajectory.model import Step

_RANGE_KEYWORDS = frozenset({"Minimum", "Maximum", "ExclusiveMinimum", "ExclusiveMaximum", "MultipleOf"})
_TAGGED_ACTION_PATTERN = re.compile(r"<(tool_call|function_call|action)>", re.IGNORECASE)
_MAX_PARSED_CHARS = 50_000


class UnknownTool(BaseDetector):
    """Detector of a call of a tool that was not offered."""

    name = "unknown_tool"
    requirements = RunRequirements(calls=True)
    summary = "a call of a tool that is not among the tools of the run"
    codes = ("agentrx:invalid_invocation", "agent_error:action.invalid_action")

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Compare the names of the calls with the offered tools, if all tools are recorded."""
        if not step.tool_calls or not view.tools or view.has_tool_servers:
            return NO_FINDINGS
        return [
            self.build_finding(
                step,
                0.6,
                f"{step.agent} called {call.name!r}, which is not among the tools of this run.",
                correction="Call only the tools of this run: " + ", ".join(sorted(view.tools)[:20]) + ".",
                evidence=quote_span(step, f"tool_calls[{i}]"),
                tool=call.name,
            )
            for i, call in enumerate(step.tool_calls)
            if call.name not in view.tools
        ]

    check_proposed = observe
    is_stateless = True


class SchemaViolation(BaseDetector):
    """Detector of arguments that violate the JSON Schema of the tool."""

    name = "schema_violation"
    requirements = RunRequirements(calls=True)
    summary = "arguments that violate the tool's JSON Schema (ranges of numbers are left to `out_of_range`)"
    codes = ("agent_error:action.parameter_error", "agentrx:invalid_invocation")

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Validate each call that parses; remote references are never resolved."""
        if not step.tool_calls:
            return NO_FINDINGS
        findings: list[Finding] = []
        for action in view.get_facts(step).actions:
            violations = (
                error
                for error in view.get_violations(action.call)
                if _classify_violation(error) not in _RANGE_KEYWORDS
            )
            findings.extend(self._build_violation(step, action, error) for error in violations)
        return findings

    check_proposed = observe
    is_stateless = True

    def _build_violation(self, step: Step, action: Action, error: Any) -> Finding:
        path = [str(part) for part in error.instance_path]
        kind, location = _classify_violation(error), ".".join(path) or "the call"
        reason = _describe_violation(error)
        key = path[-1] if path and not path[-1].isdigit() else None
        value = error.instance if path else None
        return self.build_finding(
            step,
            0.45 if kind in ("Required", "Enum", "Constant") else 0.35,
            f"The call of {action.name} violates its schema: {location} {reason}.",
            correction=f"Call {action.name} again and follow its schema: {location} {reason}.",
            evidence=quote_value(step, action.field, value, key) if path else quote_span(step, action.field),
            tool=action.name,
            path=path,
            keyword=kind,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfRangeOptions(Options):
    """Options of `OutOfRange`."""

    ranges: Mapping[str, Any] = option(
        default_factory=dict,
        description='argument to [low, high], null for no bound; "tool.argument" or "argument" of any tool',
    )


class OutOfRange(BaseDetector):
    """Detector of a number outside its declared range."""

    name = "out_of_range"
    requirements = RunRequirements(calls=True)
    summary = "a number outside the range of the tool's JSON Schema or of the option `ranges`"
    codes = ("agent_error:action.parameter_error", "agent_error:planning.constraint_ignorance")
    default_options = OutOfRangeOptions()
    options: OutOfRangeOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.ranges = {name: self._parse_range(name, pair) for name, pair in self.options.ranges.items()}

    def _parse_range(self, name: str, pair: Any) -> tuple[float, float]:
        is_valid = (
            isinstance(pair, (list, tuple)) and len(pair) == 2 and all(_parse_bound(end) for end in pair)
        )
        if not is_valid:
            raise self.build_option_error("ranges", f"{name!r} must be [low, high], each a number or null")
        low = float("-inf") if pair[0] is None else float(pair[0])
        high = float("inf") if pair[1] is None else float(pair[1])
        if low > high:
            raise self.build_option_error("ranges", f"{name!r} has a lower bound above the upper bound")
        return low, high

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Check the numbers of each call against the bounds of the schema and the declared ranges."""
        if not step.tool_calls:
            return NO_FINDINGS
        findings: list[Finding] = []
        for action in view.get_facts(step).actions:
            for error in view.get_violations(action.call):
                if _classify_violation(error) in _RANGE_KEYWORDS:
                    path = [str(part) for part in error.instance_path]
                    findings.append(
                        self._build_range_finding(
                            step, action, path, error.instance, _get_violation_limit(error)
                        )
                    )
            if self.ranges and action.call and action.call.arguments:
                findings += self._check_declared_ranges(step, action)
        return findings

    check_proposed = observe
    is_stateless = True

    def _check_declared_ranges(self, step: Step, action: Action) -> Iterator[Finding]:
        arguments = action.call.arguments if action.call else None
        for path, value in iter_numbers(arguments):
            name = next((part for part in reversed(path) if not part.isdigit()), "")
            low, high = self.ranges.get(f"{action.name}.{name}") or self.ranges.get(name) or (None, None)
            if low is not None and high is not None and not low <= value <= high:
                yield self._build_range_finding(
                    step, action, path, value, f"must be between {low:g} and {high:g}"
                )

    def _build_range_finding(
        self, step: Step, action: Action, path: list[str], value: Any, limit: str
    ) -> Finding:
        location = ".".join(path)
        key = next((part for part in reversed(path) if not part.isdigit()), None)
        return self.build_finding(
            step,
            0.6,
            f"{location} of {action.name} is {str(value)[:40]}, but it {limit}.",
            correction=f"Call {action.name} again: {location} {limit}.",
            evidence=quote_value(step, action.field, value, key),
            tool=action.name,
            path=path,
        )


class UnparsableAction(BaseDetector):
    """Detector of an action that cannot be parsed."""

    name = "unparsable_action"
    summary = (
        "tool arguments that are not a JSON object, or an action tag or JSON action block that does not parse"
    )
    codes = ("agent_error:action.format_error", "agentrx:invalid_invocation")

    @classmethod
    def can_find(cls, content: RunContent) -> bool:
        """Return True if the run has calls, or a turn contains a tag or a JSON block."""
        return content.data.calls or content.has_cue(("<", "```json"))

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Check raw arguments; in the text of a step without calls, check tagged and fenced actions."""
        facts = view.get_facts(step)
        if not facts.is_agent:
            return NO_FINDINGS
        if step.tool_calls:
            return [
                self._build_parse_finding(step, f"tool_calls[{i}]", 0, None, call.name)
                for i, call in enumerate(step.tool_calls)
                if call.arguments is None
                and (call.raw_arguments or "").strip()
                and not view.takes_free_text(call)
            ]
        if "<" not in step.content and "```json" not in facts.lower_text:
            return NO_FINDINGS
        return [
            self._build_parse_finding(step, "content", start, end, "")
            for start, end in _find_broken_json(step.content)
        ]

    check_proposed = observe
    is_stateless = True

    def _build_parse_finding(self, step: Step, field: str, start: int, end: int | None, tool: str) -> Finding:
        subject = f"arguments of {tool}" if tool else "action"
        return self.build_finding(
            step,
            0.5 if tool else 0.45,
            f"The {subject} cannot be parsed, so nothing was executed.",
            correction=f"Write the {subject} again as one complete, valid JSON object without other text.",
            evidence=quote_span(step, field, start, end),
        )


def iter_numbers(value: Any, path: tuple[str, ...] = (), depth: int = 0) -> Iterator[tuple[list[str], float]]:
    """Yield ``(path, number)`` of every finite number in JSON arguments, at most 8 levels deep."""
    if depth > 8:
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from iter_numbers(item, (*path, str(key)), depth + 1)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value[:200]):
            yield from iter_numbers(item, (*path, str(i)), depth + 1)
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300:
        yield list(path), float(value)


_VIOLATION_REASONS = {
    "Enum": "is not one of the permitted values",
    "Constant": "is not the permitted value",
    "AdditionalProperties": "has an unknown argument",
    "Pattern": "does not match the required pattern",
    "Format": "does not have the required format",
    "MinLength": "is too short",
    "MaxLength": "is too long",
    "MinItems": "has too few items",
    "MaxItems": "has too many items",
    "UniqueItems": "has duplicate items",
}


_MAX_SHOWN_OPTIONS = 8


def _classify_violation(error: Any) -> str:
    return type(error.kind).__name__


def _describe_violation(error: Any) -> str:
    """Return the description of a violation, with the expected types or few permitted values."""
    kind = _classify_violation(error)
    if kind == "Required":
        return f"has no {error.kind.property!r}"
    if kind == "Type":
        return f"must be of type {' or '.join(error.kind.types)}"
    if kind == "Enum" and len(error.kind.options) <= _MAX_SHOWN_OPTIONS:
        options = ", ".join(orjson.dumps(one).decode()[:40] for one in error.kind.options)
        return f"must be one of {options}"
    return _VIOLATION_REASONS.get(kind, "does not match the schema")


def _get_violation_limit(error: Any) -> str:
    limit = getattr(error.kind, "limit", None)
    words = {
        "Minimum": "must be at least",
        "Maximum": "must be at most",
        "ExclusiveMinimum": "must be above",
        "ExclusiveMaximum": "must be below",
    }
    kind = _classify_violation(error)
    return (
        f"{words[kind]} {limit}"
        if kind in words and limit is not None
        else "is outside the bounds of its schema"
    )


def _parse_bound(end: Any) -> bool:
    return end is None or (isinstance(end, (int, float)) and not isinstance(end, bool) and isfinite(end))


def _find_broken_json(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of actions in a text that should be JSON but do not parse."""
    for tag in list(_TAGGED_ACTION_PATTERN.finditer(text))[:10]:
        close = text.find(f"</{tag[1]}>", tag.end())
        body = text[tag.end() : close if close >= 0 else len(text)].strip()
        if body.startswith(("{", "[")) and len(body) < _MAX_PARSED_CHARS and not _is_parsable(body):
            yield tag.start(), tag.end() + len(body)
    for language, body, start, end in iter_code_fences(text):
        names_action = '"action"' in body or '"tool' in body or '"arguments"' in body or '"function' in body
        if language == "json" and names_action and len(body) < _MAX_PARSED_CHARS and not _is_parsable(body):
            yield start, end


def _is_parsable(text: str) -> bool:
    try:
        orjson.loads(text)
    except ValueError:
        return False
    return True
