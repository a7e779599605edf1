"""Propagation of an error: the later steps that use values from the root-cause step.

A value *originates* at a step if no earlier text contains it: neither the task, a prompt, a tool description
nor a step. Traced values are numbers, identifiers, addresses and dates as normalised by
`agentguard.detect.value_tracking`, and the texts of arguments. A new value in a step that uses a traced value
is traced too, as it may derive from it. Errors that leave no value behind are not traced.

Only distinctive values are traced: they have six characters or four digits, and are not a part of a URL or of
a web page's metadata. A whole number has five digits, since years and round numbers recur. A value in more
than a quarter of the later steps (and in more than five) is a topic of the run, so the result leaves it out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentguard.detect.value_tracking import ValueIndex, list_spellings, parse_number
from agentguard.trajectory.model import Source, Step, Trajectory

_URL = r"(?:https?://|www\.)[^\s\"'<>\])]+"
_METADATA = r"\"(?:al|fb|og|twitter)[:-][\w:-]+\"\s*:\s*\"[^\"]*\""
# No value begins after a backslash: "u2019re" is the rest of a JSON escape.
_TOKEN = re.compile(rf"{_URL}|{_METADATA}|(?P<token>(?<![\w.@+\\-])[$#]?[\w@+-]+(?:[.,:@/+-][\w@+-]+)*)")
_MAX_TRACES = 40
_MAX_DEPTH = 2
_MAX_TEXT_CHARS = 20_000
_MIN_VALUE_CHARS = 6
_MIN_VALUE_DIGITS = 4
_MIN_INTEGER_DIGITS = 5
_MIN_TOPIC_USES = 6
_MIN_TOPIC_SHARE = 0.25
_PHRASE_LENGTHS = range(_MIN_VALUE_CHARS, 81)


@dataclass(slots=True, kw_only=True)
class ValueTrace:
    """Traced value.

    Attributes:
        value: its first spelling.
        origin: the step at which it originated.
        source: the value from which it may derive; empty for values of the root-cause step.
        is_from_tool: whether a tool returned it at that step; otherwise the agent wrote it.
        uses: later steps that wrote it, in order.
    """

    value: str
    origin: int
    source: str = ""
    is_from_tool: bool = False
    uses: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPropagation:
    """Traced values of one step.

    Attributes:
        root: the step.
        traces: values that later steps used, most used first.
        value_count: number of values that originated at the step.
        reaches_end: whether the last step of an agent uses one of them.
        is_complete: False if the run is too long for an index of all earlier values.
    """

    root: int
    traces: tuple[ValueTrace, ...]
    value_count: int
    reaches_end: bool
    is_complete: bool


def trace_propagation(run: Trajectory, steps: Sequence[Step], root: int) -> ErrorPropagation | None:
    """Trace the values of ``steps[root]``; return None if there is no such step."""
    if not 0 <= root < len(steps):
        return None
    index = ValueIndex()
    for text in (run.task, *run.system_prompts.values(), *(tool.description for tool in run.tools)):
        index.add(text[:_MAX_TEXT_CHARS].lower(), is_initial=True)
    for step in steps[:root]:
        _index_step(index, step)
    traced = _find_new_values(index, steps[root])
    value_count = len(traced)
    follower = _ValueFollower(traced, index)
    if traced:
        follower.defer_step(steps[root])
        for step in steps[root + 1 :]:
            follower.follow_step(step)
    max_uses = max(_MIN_TOPIC_USES - 1, int(_MIN_TOPIC_SHARE * (len(steps) - root - 1)))
    used_traces = [trace for trace in traced.values() if 0 < len(trace.uses) <= max_uses]
    used_traces.sort(key=lambda trace: (bool(trace.source), -len(trace.uses), trace.origin))
    last_agent_step = next((step.index for step in reversed(steps) if step.source is Source.AGENT), -1)
    return ErrorPropagation(
        root=root,
        traces=tuple(used_traces[:_MAX_TRACES]),
        value_count=value_count,
        reaches_end=any(last_agent_step in trace.uses for trace in used_traces),
        is_complete=index.is_complete,
    )


def _index_step(index: ValueIndex, step: Step) -> None:
    for _, text in step.texts():
        index.add(text[:_MAX_TEXT_CHARS].lower())


def _find_new_values(index: ValueIndex, step: Step) -> dict[str, ValueTrace]:
    """Return values that the step writes or gets from its tools and that did not occur before."""
    traced: dict[str, ValueTrace] = {}
    for value in _extract_written_values(step):
        key = _normalize_value(value)
        if len(traced) < _MAX_TRACES and key not in traced and not index.has_value(value):
            traced[key] = ValueTrace(value=value, origin=step.index)
    for observation in step.observations:
        for value in _extract_values(observation.content[:_MAX_TEXT_CHARS]):
            key = _normalize_value(value)
            if len(traced) < _MAX_TRACES and key not in traced and not index.has_token(value):
                traced[key] = ValueTrace(value=value, origin=step.index, is_from_tool=True)
    return traced


class _ValueFollower:
    """Tracer of values through the later steps; a regular expression skips steps without traced values."""

    def __init__(self, traced: dict[str, ValueTrace], index: ValueIndex) -> None:
        self._traced, self._index = traced, index
        self._deferred_steps: list[Step] = []
        self._pattern = _build_pattern(traced)

    def defer_step(self, step: Step) -> None:
        """Queue a step; it is indexed only when the index is needed."""
        self._deferred_steps.append(step)

    def follow_step(self, step: Step) -> None:
        """Record the traced values that a step uses, and the new values that may derive from them."""
        traced = self._traced
        lower_text = " ".join(text for _, text in _list_authored_texts(step)).lower()
        if step.source is not Source.ENVIRONMENT and self._pattern.search(lower_text):
            written_values = {_normalize_value(value): value for value in _extract_written_values(step)}
            used_keys = [
                key
                for key, trace in traced.items()
                if trace.origin != step.index
                and (key in written_values or (" " in key and key in lower_text))
            ]
            for key in used_keys:
                traced[key].uses.append(step.index)
            source = next((key for key in used_keys if _trace_depth(traced, key) < _MAX_DEPTH), None)
            if source is not None:
                self._derive(step, written_values, traced[source].value)
        self.defer_step(step)

    def _derive(self, step: Step, written: Mapping[str, str], source: str) -> None:
        for deferred_step in self._deferred_steps:
            _index_step(self._index, deferred_step)
        self._deferred_steps.clear()
        trace_count = len(self._traced)
        for key, value in written.items():
            if (
                key not in self._traced
                and len(self._traced) < 2 * _MAX_TRACES
                and not self._index.has_value(value)
            ):
                self._traced[key] = ValueTrace(value=value, origin=step.index, source=source)
        if len(self._traced) > trace_count:
            self._pattern = _build_pattern(self._traced)


def _build_pattern(traced: Mapping[str, ValueTrace]) -> re.Pattern[str]:
    """Build a pattern for all spellings of all traced values in lower-case text; it is a fast prefilter."""
    forms = {
        form.strip("$#")
        for trace in traced.values()
        for form in (*list_spellings(trace.value), trace.value.lower())
    }
    return re.compile(
        "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True) if form) or r"(?!)"
    )


def _trace_depth(traced: Mapping[str, ValueTrace], key: str) -> int:
    depth = 0
    while traced[key].source and depth < _MAX_DEPTH:
        key, depth = _normalize_value(traced[key].source), depth + 1
        if key not in traced:
            break
    return depth


def _list_authored_texts(step: Step) -> Iterator[tuple[str, str]]:
    """Return the texts of a step in order, without the results of tools."""
    return (
        (name, text[:_MAX_TEXT_CHARS]) for name, text in step.texts() if not name.startswith("observations")
    )


def _extract_written_values(step: Step) -> Iterator[str]:
    for _, text in _list_authored_texts(step):
        yield from _extract_values(text)
    for call in step.tool_calls:
        yield from _extract_phrases(call.arguments)


def _extract_values(text: str) -> Iterator[str]:
    """Return distinctive tokens with a digit, and addresses."""
    for match in _TOKEN.finditer(text):
        token = (match["token"] or "").rstrip(".,:/-+")
        digits = sum(character.isdigit() for character in token)
        min_digits = _MIN_INTEGER_DIGITS if digits == len(token) else _MIN_VALUE_DIGITS
        is_distinctive = len(token) >= _MIN_VALUE_CHARS or digits >= min_digits
        if is_distinctive and len(token) <= 80 and (digits or "@" in token[1:]):
            yield token


def _extract_phrases(value: Any, depth: int = 0) -> Iterator[str]:
    """Return texts of several words in arguments, such as names and titles."""
    if depth > 6:
        return
    if isinstance(value, str):
        if len(value) in _PHRASE_LENGTHS and " " in value.strip() and "\n" not in value:
            yield value.strip()
    elif isinstance(value, Mapping):
        for item in list(value.values())[:_MAX_TRACES]:
            yield from _extract_phrases(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value[:_MAX_TRACES]:
            yield from _extract_phrases(item, depth + 1)


def _normalize_value(value: str) -> str:
    """Return one key for all spellings of a value: ``$1,250.00`` becomes ``1250``."""
    amount = parse_number(value)
    return f"{amount:g}" if amount is not None and abs(amount) < 1e6 else value.lower().lstrip("$#")
