"""Rules of an acceptance test that need no model: a schema, a pattern, a value of the task, a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jsonschema_rs
import orjson
import re2

from agentguard.errors import ConfigError
from agentguard.trajectory.model import Trajectory


class SchemaRule:
    """The output is JSON, and fits a JSON Schema.

    Raises:
        ConfigError: it is no JSON Schema.
    """

    def __init__(self, schema: Mapping[str, Any] | bool, *, name: str = "schema") -> None:
        self.name = name
        try:
            self._validator = jsonschema_rs.validator_for(
                schema if isinstance(schema, bool) else dict(schema)
            )
        except (jsonschema_rs.ValidationError, ValueError, TypeError) as error:
            raise ConfigError(f"acceptance rule {name!r}: it is no JSON Schema: {error}") from None

    def find_violation(self, output: str, run: Trajectory) -> str:  # noqa: ARG002
        """Where the output breaks the schema."""
        try:
            value = orjson.loads(output)
        except orjson.JSONDecodeError:
            return "The answer is not valid JSON."
        error = next(iter(self._validator.iter_errors(value)), None)
        if error is None:
            return ""
        place = ".".join(str(part) for part in error.instance_path)
        return f"The answer does not fit its schema{f' at {place}' if place else ''}: {error.message}."


class PatternRule:
    """The output, or a field of it, matches a pattern of RE2 (linear in the text, whatever the pattern).

    Args:
        pattern: searched for anywhere in the text; use ``^`` and ``$`` for all of it.
        field: of an output that is JSON, e.g. ``"order.date"``; the whole text if absent.
        absent: the pattern must not be found.

    Raises:
        ConfigError: the pattern is none of RE2.
    """

    def __init__(self, pattern: str, *, field: str = "", absent: bool = False, name: str = "") -> None:
        self.name = name or f"matches {field}".strip()
        self._pattern, self._field, self._must_be_absent = _compile_pattern(pattern, self.name), field, absent

    def find_violation(self, output: str, run: Trajectory) -> str:  # noqa: ARG002
        """That the pattern is not found, or is where it must not be."""
        text = output if not self._field else extract_field(output, self._field)
        what = f"The field {self._field}" if self._field else "The answer"
        if text is None:
            return f"{what} is missing."
        found = self._pattern.search(text) is not None
        if found != self._must_be_absent:
            return ""
        return f"{what} {'contains what it must not' if found else 'has not the form it must have'}."


class TaskValueRule:
    """A field of the output is a value of the task, and nothing made up.

    Args:
        field: of an output that is JSON, e.g. ``"order.number"``.
        pattern: of RE2, finds the value in the task (its first group, or all that matches; the first place
            that it matches). Without one, the field's value must occur somewhere in the task, as whole words.

    Case and white space do not count. A task in which the pattern finds nothing demands that the field is
    empty or absent.

    Raises:
        ConfigError: the pattern is none of RE2.
    """

    def __init__(self, field: str, pattern: str = "", *, name: str = "") -> None:
        self.name = name or f"from task {field}"
        self._field, self._pattern = field, _compile_pattern(pattern, self.name) if pattern else None

    def find_violation(self, output: str, run: Trajectory) -> str:
        """That the field has another value than the task."""
        given = normalize_text(extract_field(output, self._field) or "")
        if self._pattern is None:
            held = bool(given) and _contains_whole(given, normalize_text(run.task))
            return "" if held else f"The value of {self._field} is not in the task."
        found = self._pattern.search(run.task)
        wanted = "" if found is None else normalize_text(found.group(1 if found.re.groups else 0) or "")
        return "" if given == wanted else f"The field {self._field} does not say what the task says."


class FunctionRule:
    """A function of one's own decides.

    Args:
        function: given the output and the run: True, or False or a reason against it.
        name: what it is called in the record.
    """

    def __init__(self, function: Callable[[str, Trajectory], bool | str], *, name: str) -> None:
        self.name, self._function = name, function

    def find_violation(self, output: str, run: Trajectory) -> str:
        """What the function says."""
        said = self._function(output, run)
        if said is True:
            return ""
        return str(said) if said else f"The rule {self.name} refuses the answer."


def extract_field(output: str, field: str) -> str | None:
    """A field of a JSON text, as text; None if the text is no JSON or has no such field.

    ``field`` names keys and positions, with dots between them: ``items.0.name``.
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
    """Text without the differences that do not count: case, and how white space is written."""
    return " ".join(text.casefold().split())


def _contains_whole(value: str, text: str) -> bool:
    """Whether a value is in a text by itself: 16 is not in 5016, nor a mug among mugs."""
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
        raise ConfigError(f"acceptance rule {name!r}: {pattern!r} is no pattern of RE2") from None
