"""Acceptance rules that need no model: schema, pattern, text, number, value of the task, calls, function."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jsonschema_rs
import orjson
import re2

from agentguard.detect.result_classification import classify_result
from agentguard.errors import ConfigError
from agentguard.recover.acceptance.base import BaseRule
from agentguard.trajectory.model import Step, ToolCall, Trajectory


class SchemaRule(BaseRule):
    """Rule that the output is JSON and satisfies a JSON Schema.

    Raises:
        ConfigError: the schema is not a valid JSON Schema.
    """

    def __init__(self, schema: Mapping[str, Any] | bool, *, name: str = "schema") -> None:
        self.name = name
        try:
            self._validator = jsonschema_rs.validator_for(
                schema if isinstance(schema, bool) else dict(schema)
            )
        except (jsonschema_rs.ValidationError, ValueError, TypeError) as error:
            raise ConfigError(f"acceptance rule {name!r}: not a valid JSON Schema: {error}") from None

    def find_violation(self, output: str, run: Trajectory) -> str:  # noqa: ARG002
        """Return the first violation of the schema."""
        try:
            value = orjson.loads(output)
        except orjson.JSONDecodeError:
            return "The answer is not valid JSON."
        error = next(iter(self._validator.iter_errors(value)), None)
        if error is None:
            return ""
        place = ".".join(str(part) for part in error.instance_path)
        return f"The answer does not fit its schema{f' at {place}' if place else ''}: {error.message}."


class PatternRule(BaseRule):
    """Rule that the output, or one of its fields, matches an RE2 pattern (linear time for every pattern).

    Args:
        pattern: pattern to search anywhere in the text; ``^`` and ``$`` match the whole text.
        field: field of a JSON output, for example ``"order.date"``; by default the whole text.
        absent: True if the pattern must not match.

    Raises:
        ConfigError: the pattern is not valid RE2.
    """

    def __init__(self, pattern: str, *, field: str = "", absent: bool = False, name: str = "") -> None:
        self.name = name or f"matches {field}".strip()
        self._pattern, self._field, self._must_be_absent = _compile_pattern(pattern, self.name), field, absent

    def find_violation(self, output: str, run: Trajectory) -> str:  # noqa: ARG002
        """Return a violation if the pattern does not match, or matches although it must be absent."""
        text = output if not self._field else extract_field(output, self._field)
        what = f"The field {self._field}" if self._field else "The answer"
        if text is None:
            return f"{what} is missing."
        found = self._pattern.search(text) is not None
        if found != self._must_be_absent:
            return ""
        return f"{what} {'contains a forbidden text' if found else 'does not have the required form'}."


class TextRule(BaseRule):
    """Rule that the output contains all given texts, or none of them; case and white space are ignored.

    Args:
        texts: one text or several.
        absent: True if the output must contain none of the texts.

    Raises:
        ConfigError: there is no text, or one is empty.
    """

    def __init__(self, texts: str | Sequence[str], *, absent: bool = False, name: str = "") -> None:
        several = [texts] if isinstance(texts, str) else list(texts)
        verb = "excludes" if absent else "contains"
        if not several or not all(isinstance(one, str) and one.strip() for one in several):
            raise ConfigError(
                f"acceptance rule {verb!r}: expected a text or a list of texts that are not empty"
            )
        self.name = name or f"{verb} {several[0]}"
        self._texts, self._must_be_absent = several, absent

    def find_violation(self, output: str, run: Trajectory) -> str:  # noqa: ARG002
        """Return a violation that names the first wrong text."""
        normalized = normalize_text(output)
        for text in self._texts:
            if (normalize_text(text) in normalized) == self._must_be_absent:
                return f"The answer must {'not ' if self._must_be_absent else ''}contain {text!r}."
        return ""


class NumberRule(BaseRule):
    """Rule that a number of the output is within limits.

    Args:
        field: field of a JSON output, for example ``"order.total"``; empty for the whole text.
        pattern: RE2 pattern whose first group, or whole match, is the number in that text; by default the
            whole text is the number. ``1,234.5`` is read as 1234.5.
        minimum: smallest value; None for no limit.
        maximum: largest value; None for no limit.

    Raises:
        ConfigError: there is no limit, a limit is not a number, or the pattern is not valid RE2.
    """

    def __init__(
        self,
        field: str = "",
        *,
        pattern: str = "",
        minimum: float | None = None,
        maximum: float | None = None,
        name: str = "",
    ) -> None:
        self.name = name or f"number {field}".strip()
        limits = [one for one in (minimum, maximum) if one is not None]
        if not limits or not all(type(one) in (int, float) and math.isfinite(one) for one in limits):
            raise ConfigError(
                f"acceptance rule {self.name!r}: expected finite numbers as minimum, maximum or both"
            )
        if limits[0] > limits[-1]:
            raise ConfigError(f"acceptance rule {self.name!r}: minimum is above maximum")
        self._field, self._pattern = field, _compile_pattern(pattern, self.name) if pattern else None
        self._minimum = -math.inf if minimum is None else minimum
        self._maximum = math.inf if maximum is None else maximum

    def find_violation(self, output: str, run: Trajectory) -> str:  # noqa: ARG002
        """Return a violation if there is no number, or if it is outside the limits."""
        what = f"The field {self._field}" if self._field else "The answer"
        text = extract_field(output, self._field) if self._field else output
        number = None if text is None else self._parse_number(text)
        if number is None:
            return f"{what} has no number."
        if number < self._minimum:
            return f"{what} has the number {number:g}, expected at least {self._minimum:g}."
        if number > self._maximum:
            return f"{what} has the number {number:g}, expected at most {self._maximum:g}."
        return ""

    def _parse_number(self, text: str) -> float | None:
        if self._pattern is not None:
            found = self._pattern.search(text)
            text = "" if found is None else found.group(1 if found.re.groups else 0) or ""
        try:
            number = float(text.strip().replace(",", ""))
        except ValueError:
            return None
        return number if math.isfinite(number) else None


class TaskValueRule(BaseRule):
    """Rule that a field of the output has a value of the task.

    The comparison ignores case and white space. If the pattern does not match the task, the field must be
    empty or absent.

    Args:
        field: field of a JSON output, for example ``"order.number"``.
        pattern: RE2 pattern whose first match in the task is the expected value: its first group, or the
            whole match. Without a pattern, the field's value must occur in the task as whole words.

    Raises:
        ConfigError: the pattern is not valid RE2.
    """

    def __init__(self, field: str, pattern: str = "", *, name: str = "") -> None:
        self.name = name or f"from task {field}"
        self._field, self._pattern = field, _compile_pattern(pattern, self.name) if pattern else None

    def find_violation(self, output: str, run: Trajectory) -> str:
        """Return a violation if the value of the field differs from the task."""
        actual = normalize_text(extract_field(output, self._field) or "")
        if self._pattern is None:
            is_in_task = bool(actual) and _contains_whole(actual, normalize_text(run.task))
            return "" if is_in_task else f"The value of {self._field} is not in the task."
        found = self._pattern.search(run.task)
        expected = "" if found is None else normalize_text(found.group(1 if found.re.groups else 0) or "")
        return "" if actual == expected else f"The field {self._field} does not match the task."


class ToolCallRule(BaseRule):
    """Rule that the run has a number of successful calls of a tool.

    A call is successful if it has a result that does not report an error.

    Args:
        tool: name of the tool.
        arguments: arguments of the calls to count; a call may have others, too.
        minimum: smallest number of calls.
        maximum: largest number of calls; None for no limit.

    Raises:
        ConfigError: the limits are not whole numbers with 0 <= minimum <= maximum.
    """

    def __init__(
        self,
        tool: str,
        *,
        arguments: Mapping[str, Any] | None = None,
        minimum: int = 1,
        maximum: int | None = None,
        name: str = "",
    ) -> None:
        self.name = name or f"calls {tool}"
        limits = [minimum] if maximum is None else [minimum, maximum]
        if any(type(one) is not int for one in limits) or not 0 <= limits[0] <= limits[-1]:
            raise ConfigError(
                f"acceptance rule {self.name!r}: expected whole numbers with 0 <= minimum <= maximum"
            )
        self._tool, self._arguments = tool, dict(arguments or {})
        self._minimum, self._maximum = minimum, maximum

    def find_violation(self, output: str, run: Trajectory) -> str:  # noqa: ARG002
        """Return a violation if there are too few or too many successful calls."""
        count = sum(
            self._matches(call) and _is_successful(call, position, step)
            for step in run.steps
            for position, call in enumerate(step.tool_calls)
        )
        if count < self._minimum:
            return f"{self._tool} had {count} successful calls, expected at least {self._minimum}."
        if self._maximum is not None and count > self._maximum:
            return f"{self._tool} had {count} successful calls, expected at most {self._maximum}."
        return ""

    def _matches(self, call: ToolCall) -> bool:
        arguments = call.arguments or {}
        return call.name == self._tool and all(
            name in arguments and arguments[name] == value for name, value in self._arguments.items()
        )


class FunctionRule(BaseRule):
    """Rule that a function of the user checks.

    Args:
        function: function of the output and the run. It returns True to accept, False or a reason to refuse.
        name: name of the rule in the record.
    """

    def __init__(self, function: Callable[[str, Trajectory], bool | str], *, name: str) -> None:
        self.name, self._function = name, function

    def find_violation(self, output: str, run: Trajectory) -> str:
        """Return the reason of the function, or a default reason if it returned False."""
        result = self._function(output, run)
        if result is True:
            return ""
        return str(result) if result else f"The answer does not satisfy the rule {self.name}."


def extract_field(output: str, field: str) -> str | None:
    """Return a field of a JSON text as text; None if the text is not JSON or lacks the field.

    ``field`` is a path of keys and indices separated by dots: ``items.0.name``.
    """
    try:
        value: Any = orjson.loads(output)
    except orjson.JSONDecodeError:
        return None
    for part in field.split("."):
        if isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            return None
    return value if isinstance(value, str) else None if value is None else orjson.dumps(value).decode()


def normalize_text(text: str) -> str:
    """Return a text in lower case with single spaces."""
    return " ".join(text.casefold().split())


def _contains_whole(value: str, text: str) -> bool:
    """Return whether a text contains a value as whole words: 5016 does not contain 16."""
    at = text.find(value)
    while at >= 0:
        end = at + len(value)
        if not (_is_joined(text[at - 1 : at], value[0]) or _is_joined(value[-1], text[end : end + 1])):
            return True
        at = text.find(value, at + 1)
    return False


def _is_joined(left: str, right: str) -> bool:
    return left.isalnum() and right.isalnum()


def _compile_pattern(pattern: str, name: str) -> Any:
    settings = re2.Options()
    settings.log_errors = False
    try:
        return re2.compile(pattern, settings)
    except (re2.error, UnicodeEncodeError, TypeError):
        raise ConfigError(f"acceptance rule {name!r}: {pattern!r} is not a valid RE2 pattern") from None


def _is_successful(call: ToolCall, position: int, step: Step) -> bool:
    results = [one for one in step.observations if one.call_id == call.id]
    if not results:
        results = [one for one in step.observations[position : position + 1] if one.call_id is None]
    return bool(results) and not any(
        classify_result(one.content.lower(), flag=one.is_error).is_error for one in results
    )
