"""Index of a run for edits: the source of each step and value, and the steps that depend on a value."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import orjson

from agentguard.detect._text import to_lower
from agentguard.detect.result_classification import classify_result
from agentguard.detect.tool_names import is_write_tool
from agentguard.evals.inject.edits.values import Value, ValueKind, classify_value, extract_values, find_names
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, Trajectory

Values = frozenset[Value]
_MAX_NAMES = 200
_MAX_LEAVES = 2_000


class RunIndex:
    """Index of one run, shared by all edits that are tried on it."""

    def __init__(self, run: Trajectory) -> None:
        self.run = run
        self.steps = run.steps
        self._before: dict[int, Values] = {}
        self._needed: dict[tuple[int, int], bool] = {}

    # -- steps -------------------------------------------------------------------------------------------

    def is_agent(self, step: int) -> bool:
        """Return whether a step is a turn of an agent."""
        return 0 <= step < len(self.steps) and self.steps[step].source is Source.AGENT

    def has_answered_calls(self, step: int) -> bool:
        """Return whether a step is a turn of an agent in which every tool call has a result."""
        turn = self.steps[step]
        answered_ids = {observation.call_id for observation in turn.observations}
        return (
            self.is_agent(step)
            and bool(turn.tool_calls)
            and all(c.id in answered_ids for c in turn.tool_calls)
        )

    def is_mutating(self, step: int) -> bool:
        """Return whether a turn calls a tool that changes state, judged by the name of the tool."""
        return self.is_agent(step) and any(is_write_tool(call.name) for call in self.steps[step].tool_calls)

    def is_mutating_from(self, step: int) -> bool:
        """Return whether this step or a later one changes state."""
        return any(self.is_mutating(i) for i in range(step, len(self.steps)))

    def has_work_left(self, step: int) -> bool:
        """Return whether this step or a later one changes state or yields a value that a later step uses."""
        return self.is_mutating_from(step) or any(
            self.has_answered_calls(i) and self.is_needed_later(i, self.find_turn_end(i))
            for i in range(step, len(self.steps))
        )

    def has_no_error(self, step: int) -> bool:
        """Return whether no result of a step looks like an error."""
        return not any(is_error_text(observation) for observation in self.steps[step].observations)

    def has_answers_after(self, step: int) -> bool:
        """Return whether a later step contains a reply of the environment."""
        return any(s.observations or s.source is Source.ENVIRONMENT for s in self.steps[step + 1 :])

    def find_turn_end(self, step: int) -> int:
        """Return the index after a turn of an agent and the environment steps that answer it."""
        end = step + 1
        while end < len(self.steps) and self.steps[end].source is Source.ENVIRONMENT:
            end += 1
        return end

    # -- values ------------------------------------------------------------------------------------------

    @cached_property
    def names(self) -> tuple[Value, ...]:
        """Names that tool calls of the run pass as arguments."""
        names = {
            value: None
            for step in self.steps
            for call in step.tool_calls
            for _, leaf in iterate_leaves(call.arguments)
            if isinstance(leaf, str) and (value := classify_value(leaf)) and value.kind is ValueKind.NAME
        }
        return tuple(names)[:_MAX_NAMES]

    @cached_property
    def initial_values(self) -> Values:
        """Values in the task, the prompts and the tool definitions."""
        tools = (f"{tool.description} {_load_json(tool.parameters)}" for tool in self.run.tools)
        texts = (self.run.task, *self.run.system_prompts.values(), *tools)
        return frozenset(value for text in texts for value in self._extract_values(text))

    @cached_property
    def stated_values(self) -> tuple[Values, ...]:
        """Values in the text of each agent, user or system step."""
        return tuple(
            frozenset(v for text in read_spoken_text(step) for v in self._extract_values(text))
            if step.source is not Source.ENVIRONMENT
            else frozenset()
            for step in self.steps
        )

    @cached_property
    def call_values(self) -> tuple[Values, ...]:
        """Values in the tool calls of each step."""
        return tuple(
            frozenset(v for call in step.tool_calls for v in self._extract_values(read_call_text(call)))
            for step in self.steps
        )

    @cached_property
    def result_values(self) -> tuple[Values, ...]:
        """Values in the results of each step."""
        return tuple(
            frozenset(v for text in read_returned_text(step) for v in self._extract_values(text))
            for step in self.steps
        )

    @cached_property
    def known_texts(self) -> frozenset[str]:
        """All values of the run in lower case; a value outside this set is new to the run."""
        every = (
            self.initial_values,
            *self.stated_values,
            *self.call_values,
            *self.result_values,
        )
        return frozenset(value.text.lower() for values in every for value in values)

    def find_origin(self, value: Value) -> int | None:
        """Return the step in which a value first came from outside the agents.

        The result is -1 if the value is part of the task, the prompts or the tool definitions. It is None if
        the value never came from outside.
        """
        return self._origins.get(value)

    def collect_values_before(self, step: int) -> Values:
        """Return the values that occur before a step."""
        if step not in self._before:
            values = set(self.initial_values)
            for i in range(step):
                values |= self.stated_values[i] | self.call_values[i] | self.result_values[i]
            self._before[step] = frozenset(values)
        return self._before[step]

    def find_last_result_step(self, step: int) -> int | None:
        """Return the step whose result directly precedes a turn of an agent; None if no result does."""
        i = step - 1
        while i >= 0 and self.steps[i].source is Source.ENVIRONMENT and not self.steps[i].content:
            i -= 1
        if i < 0 or not tuple(read_returned_text(self.steps[i])):
            return None
        return i

    def is_needed_later(self, first: int, end: int) -> bool:
        """Return whether an agent uses, from step ``end`` on, a value first seen in ``first`` to ``end``."""
        if (first, end) not in self._needed:
            self._needed[first, end] = self._is_needed(first, end)
        return self._needed[first, end]

    def _is_needed(self, first: int, end: int) -> bool:
        earlier = {value.text.lower() for value in self.collect_values_before(first)}
        fresh = {
            value
            for i in range(first, end)
            for value in self.result_values[i] | self.stated_values[i] | self.call_values[i]
            if value.text.lower() not in earlier
        }
        for i in range(end, len(self.steps)):
            if not fresh:
                return False
            if self.is_agent(i) and not fresh.isdisjoint(self.stated_values[i] | self.call_values[i]):
                return True
            fresh -= self.result_values[i]
            if not self.is_agent(i):
                fresh -= self.stated_values[i]
        return False

    def find_values_under(self, key: str, before: int) -> tuple[Value, ...]:
        """Return the values of a key in results and arguments before a step, oldest first."""
        values: dict[Value, None] = {}
        for i, name, value in self._keyed_values:
            if i < before and name == key:
                values[value] = None
        return tuple(values)

    @cached_property
    def _origins(self) -> dict[Value, int]:
        origins = dict.fromkeys(self.initial_values, -1)
        for i, step in enumerate(self.steps):
            outside = self.stated_values[i] if step.source is not Source.AGENT else frozenset()
            for value in self.result_values[i] | outside:
                origins.setdefault(value, i)
        return origins

    @cached_property
    def _keyed_values(self) -> tuple[tuple[int, str, Value], ...]:
        entries = []
        for i, step in enumerate(self.steps):
            parsed = [_parse_json(text) for text in read_returned_text(step)]
            for data in (*(call.arguments for call in step.tool_calls), *parsed):
                for path, leaf in iterate_leaves(data):
                    key = next((part for part in reversed(path) if isinstance(part, str)), "")
                    value = classify_value(_format_scalar(leaf)) if key else None
                    if value is not None:
                        entries.append((i, key, value))
        return tuple(entries)

    def _extract_values(self, text: str) -> Iterator[Value]:
        yield from extract_values(text)
        yield from find_names(text, self.names)


_LAST: list[RunIndex] = []


def build_run_index(run: Trajectory) -> RunIndex:
    """Return the index of a run. The last one is cached, because all edits are tried on one run in turn."""
    if not _LAST or _LAST[0].run is not run:
        _LAST[:] = [RunIndex(run)]
    return _LAST[0]


def read_spoken_text(step: Step) -> Iterator[str]:
    """Yield the texts that a step itself contains, without results."""
    yield from (step.reasoning, step.content, *step.modules.values())


def read_returned_text(step: Step) -> Iterator[str]:
    """Yield the texts that the environment returned in a step."""
    if step.source is Source.ENVIRONMENT and step.content:
        yield step.content
    yield from (observation.content for observation in step.observations if observation.content)


def read_call_text(call: ToolCall) -> str:
    """Return the arguments of a call as text."""
    return call.raw_arguments or _load_json(call.arguments)


def is_error_text(observation: Observation) -> bool:
    """Return whether a result looks like an error."""
    return classify_result(to_lower(observation.content), flag=observation.is_error).is_error


def iterate_leaves(data: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield ``(path, scalar)`` for every text and number in JSON data, in order; skip booleans."""
    stack: list[tuple[tuple[str | int, ...], Any]] = [((), data)]
    count = 0
    while stack and count < _MAX_LEAVES:
        path, value = stack.pop()
        if isinstance(value, dict):
            stack.extend(((*path, k), v) for k, v in reversed(value.items()))
        elif isinstance(value, list):
            stack.extend(((*path, i), v) for i, v in reversed(list(enumerate(value))))
        elif isinstance(value, str | int | float) and not isinstance(value, bool) and path:
            count += 1
            yield path, value


def _parse_json(text: str) -> Any:
    if text[:1] not in "{[":
        return None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _format_scalar(leaf: Any) -> str:
    return leaf if isinstance(leaf, str) else f"{leaf}"


def _load_json(value: Any) -> str:
    if not value:
        return ""
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError):
        return repr(value)
