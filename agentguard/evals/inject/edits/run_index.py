"""What an edit must know of a run: who said what, where each value came from, what depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import orjson

from agentguard.detect._text import to_lower
from agentguard.detect.error_patterns import match_error
from agentguard.evals.inject.edits.values import Value, ValueKind, classify_value, extract_values, find_names
from agentguard.judge.embedded.features.lexicon import is_write_tool
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, Trajectory

Values = frozenset[Value]
_MAX_NAMES = 200
_MAX_LEAVES = 2_000


class RunIndex:
    """One run, indexed once for all edits that are tried on it."""

    def __init__(self, run: Trajectory) -> None:
        self.run = run
        self.steps = run.steps
        self._before: dict[int, Values] = {}
        self._needed: dict[tuple[int, int], bool] = {}

    # -- who and what ------------------------------------------------------------------------------------

    def is_agent(self, step: int) -> bool:
        """Whether a step is an agent's turn."""
        return 0 <= step < len(self.steps) and self.steps[step].source is Source.AGENT

    def has_answered_calls(self, step: int) -> bool:
        """Whether a step is an agent's turn whose calls were all answered."""
        one = self.steps[step]
        answered = {seen.call_id for seen in one.observations}
        return self.is_agent(step) and bool(one.tool_calls) and all(c.id in answered for c in one.tool_calls)

    def is_mutating(self, step: int) -> bool:
        """Whether a turn calls a tool that changes something, as far as its name tells."""
        return self.is_agent(step) and any(is_write_tool(call.name) for call in self.steps[step].tool_calls)

    def is_mutating_from(self, step: int) -> bool:
        """Whether anything is changed in this step or a later one."""
        return any(self.is_mutating(i) for i in range(step, len(self.steps)))

    def has_work_left(self, step: int) -> bool:
        """Whether, from this step on, something is changed, or something is found that is used later."""
        return self.is_mutating_from(step) or any(
            self.has_answered_calls(i) and self.is_needed_later(i, self.find_turn_end(i))
            for i in range(step, len(self.steps))
        )

    def has_no_error(self, step: int) -> bool:
        """Whether nothing that came back in a step looks like an error."""
        return not any(is_error_text(seen) for seen in self.steps[step].observations)

    @cached_property
    def has_environment_steps(self) -> bool:
        """Whether the environment's answers are steps of their own."""
        return any(step.source is Source.ENVIRONMENT for step in self.steps)

    def has_answers_after(self, step: int) -> bool:
        """Whether anything comes back from the environment in a later step."""
        return any(s.observations or s.source is Source.ENVIRONMENT for s in self.steps[step + 1 :])

    def find_turn_end(self, step: int) -> int:
        """Index behind an agent's turn and the environment steps that answer it."""
        end = step + 1
        while end < len(self.steps) and self.steps[end].source is Source.ENVIRONMENT:
            end += 1
        return end

    # -- values ------------------------------------------------------------------------------------------

    @cached_property
    def collect_names(self) -> tuple[Value, ...]:
        """Names used as arguments anywhere in the run."""
        found = {
            value: None
            for step in self.steps
            for call in step.tool_calls
            for _, leaf in iterate_leaves(call.arguments)
            if isinstance(leaf, str) and (value := classify_value(leaf)) and value.kind is ValueKind.NAME
        }
        return tuple(found)[:_MAX_NAMES]

    @cached_property
    def collect_initial_values(self) -> Values:
        """Values of the task, the prompts and the tools."""
        tools = (f"{tool.description} {_load_json(tool.parameters)}" for tool in self.run.tools)
        texts = (self.run.task, *self.run.system_prompts.values(), *tools)
        return frozenset(value for text in texts for value in self._extract_values(text))

    @cached_property
    def collect_stated_values(self) -> tuple[Values, ...]:
        """Values of what each agent, user or system step says."""
        return tuple(
            frozenset(v for text in read_spoken_text(step) for v in self._extract_values(text))
            if step.source is not Source.ENVIRONMENT
            else frozenset()
            for step in self.steps
        )

    @cached_property
    def collect_call_values(self) -> tuple[Values, ...]:
        """Values of each step's calls."""
        return tuple(
            frozenset(v for call in step.tool_calls for v in self._extract_values(read_call_text(call)))
            for step in self.steps
        )

    @cached_property
    def collect_result_values(self) -> tuple[Values, ...]:
        """Values of what came back in each step."""
        return tuple(
            frozenset(v for text in read_returned_text(step) for v in self._extract_values(text))
            for step in self.steps
        )

    @cached_property
    def collect_known_text(self) -> frozenset[str]:
        """Every value of the run in lower case, to tell what would be new to it."""
        every = (
            self.collect_initial_values,
            *self.collect_stated_values,
            *self.collect_call_values,
            *self.collect_result_values,
        )
        return frozenset(value.text.lower() for values in every for value in values)

    def find_origin(self, value: Value) -> int | None:
        """Step in which a value first came from outside the agents; -1 if it was given; None if never."""
        return self._build_origins.get(value)

    def collect_values_before(self, step: int) -> Values:
        """Values there were before a step."""
        if step not in self._before:
            found = set(self.collect_initial_values)
            for i in range(step):
                found |= (
                    self.collect_stated_values[i]
                    | self.collect_call_values[i]
                    | self.collect_result_values[i]
                )
            self._before[step] = frozenset(found)
        return self._before[step]

    def find_last_result_step(self, step: int) -> int | None:
        """The step whose result lies directly before an agent's turn, if a result does."""
        i = step - 1
        while i >= 0 and self.steps[i].source is Source.ENVIRONMENT and not self.steps[i].content:
            i -= 1
        if i < 0 or not tuple(read_returned_text(self.steps[i])):
            return None
        return i

    def is_needed_later(self, first: int, end: int) -> bool:
        """Whether agents, from step ``end`` on, use a value that steps ``first`` to ``end`` brought in."""
        if (first, end) not in self._needed:
            self._needed[first, end] = self._is_needed(first, end)
        return self._needed[first, end]

    def _is_needed(self, first: int, end: int) -> bool:
        earlier = {value.text.lower() for value in self.collect_values_before(first)}
        fresh = {
            value
            for i in range(first, end)
            for value in self.collect_result_values[i]
            | self.collect_stated_values[i]
            | self.collect_call_values[i]
            if value.text.lower() not in earlier
        }
        for i in range(end, len(self.steps)):
            if not fresh:
                return False
            if self.is_agent(i) and not fresh.isdisjoint(
                self.collect_stated_values[i] | self.collect_call_values[i]
            ):
                return True
            fresh -= self.collect_result_values[i]
            if not self.is_agent(i):
                fresh -= self.collect_stated_values[i]
        return False

    def find_values_under(self, key: str, before: int) -> tuple[Value, ...]:
        """Values that stood under a key of a result or an argument before a step, oldest first."""
        found: dict[Value, None] = {}
        for i, name, value in self._group_by_key:
            if i < before and name == key:
                found[value] = None
        return tuple(found)

    @cached_property
    def _build_origins(self) -> dict[Value, int]:
        found = dict.fromkeys(self.collect_initial_values, -1)
        for i, step in enumerate(self.steps):
            outside = self.collect_stated_values[i] if step.source is not Source.AGENT else frozenset()
            for value in self.collect_result_values[i] | outside:
                found.setdefault(value, i)
        return found

    @cached_property
    def _group_by_key(self) -> tuple[tuple[int, str, Value], ...]:
        found = []
        for i, step in enumerate(self.steps):
            parsed = [_parse_json(text) for text in read_returned_text(step)]
            for data in (*(call.arguments for call in step.tool_calls), *parsed):
                for path, leaf in iterate_leaves(data):
                    key = next((part for part in reversed(path) if isinstance(part, str)), "")
                    value = classify_value(_format_scalar(leaf)) if key else None
                    if value is not None:
                        found.append((i, key, value))
        return tuple(found)

    def _extract_values(self, text: str) -> Iterator[Value]:
        yield from extract_values(text)
        yield from find_names(text, self.collect_names)


_LAST: list[RunIndex] = []


def build_run_index(run: Trajectory) -> RunIndex:
    """The reading of a run; the last one is kept, as all edits are tried on one run before the next."""
    if not _LAST or _LAST[0].run is not run:
        _LAST[:] = [RunIndex(run)]
    return _LAST[0]


def read_spoken_text(step: Step) -> Iterator[str]:
    """What a step says itself."""
    yield from (step.reasoning, step.content, *step.modules.values())


def read_returned_text(step: Step) -> Iterator[str]:
    """What came back from the environment in a step."""
    if step.source is Source.ENVIRONMENT and step.content:
        yield step.content
    yield from (seen.content for seen in step.observations if seen.content)


def read_call_text(call: ToolCall) -> str:
    """A call's arguments as text."""
    return call.raw_arguments or _load_json(call.arguments)


def is_error_text(seen: Observation) -> bool:
    """Whether a result looks like an error."""
    return match_error(to_lower(seen.content), flag=seen.is_error) is not None


def iterate_leaves(data: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """``(path, scalar)`` of every text or number in JSON data, in order; booleans are left out."""
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
