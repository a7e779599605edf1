"""Acceptance rules that need no model: schema, pattern, value of the task, function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jsonschema_rs
import orjson
import re2

from agentguard.errors import ConfigError
from agentguard.recover.acceptance.base import BaseRule
from agentguard.trajectory.model import Trajectory


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
            raise ConfigError(f"acceptance rule {name!r}: it is not a JSON Schema: {error}") from None

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
        pattern: pattern that is searched anywhere in the text; ``^`` and ``$`` match the whole text.
        field: field of a JSON output, for example ``"order.date"``; by default the whole text.
        absent: if True, the pattern must not match.

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
        return f"{what} {'contains what it must not' if found else 'has not the form it must have'}."


class TaskValueRule(BaseRule):
    """Rule that a field of the output has a value of the task and is not invented.

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
        given = normalize_text(extract_field(output, self._field) or "")
        if self._pattern is None:
            held = bool(given) and _contains_whole(given, normalize_text(run.task))
            return "" if held else f"The value of {self._field} is not in the task."
        found = self._pattern.search(run.task)
        wanted = "" if found is None else normalize_text(found.group(1 if found.re.groups else 0) or "")
        return "" if given == wanted else f"The field {self._field} does not say what the task says."


class FunctionRule(BaseRule):
    """Rule that calls a user's function.

    Args:
        function: function of the output and the run. It returns True to accept, False or a reason to refuse.
        name: name of the rule in the record.
    """

    def __init__(self, function: Callable[[str, Trajectory], bool | str], *, name: str) -> None:
        self.name, self._function = name, function

    def find_violation(self, output: str, run: Trajectory) -> str:
        """Return the reason of the function, or a default reason if it returned False."""
        said = self._function(output, run)
        if said is True:
            return ""
        return str(said) if said else f"The rule {self.name} refuses the answer."


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
    """Normalise the case and the white space of a text."""
    return " ".join(text.casefold().split())


def _contains_whole(value: str, text: str) -> bool:
    """Return whether a text contains a value as a whole word: 5016 does not contain 16, mugs not mug."""
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
        raise ConfigError(f"acceptance rule {name!r}: {pattern!r} is not a pattern of RE2") from None
