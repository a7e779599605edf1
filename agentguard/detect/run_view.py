"""View of a run for detectors: append-only, with the indices that detectors share.

Only the list of steps grows with the run. The view stores facts of the latest steps, the latest moves, and an
index of values of bounded size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import jsonschema_rs
import orjson

from agentguard.detect._text import to_lower
from agentguard.detect.step_facts import StepFacts, ToolResult, canonicalize_json
from agentguard.detect.value_tracking import ValueIndex
from agentguard.trajectory.model import Source, Step, ToolCall, ToolSpec, Trajectory

_MAX_FACTS = 64
_MAX_MOVES = 48
_MAX_ERRORS = 5
_MAX_CACHED_BYTES = 65_536
"""Maximum size of a schema whose compiled form is cached for other runs."""
_PLAIN_TOOL_TYPES = (None, "function", "custom")
"""Types of tools with one name; other types are servers, or hosted tools with several names."""


@dataclass(slots=True)
class Move:
    """Move: the calls, code or text of an agent in one step. ``outcome`` is None until there is a result."""

    facts: StepFacts
    key: int
    outcome: int | None = None
    has_error: bool = False

    @property
    def step(self) -> Step:
        """Step of the move."""
        return self.facts.step


class StepSequence(Sequence[Step]):
    """Read-only view of a list of steps; the list may grow."""

    def __init__(self, steps: list[Step]) -> None:
        self._steps = steps

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, index: Any) -> Any:
        return self._steps[index]

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps)


class RunView:
    """View of a run up to its latest step.

    Args:
        task: task of the agents.
        tools: tools offered to the agents.
        system_prompts: system prompt by the name of the agent; ``""`` is the key of a common prompt.
        exit_status: recorded reason for the end of the run, or None.
        is_content_recorded: whether the source recorded the content of messages.

    Attributes:
        steps: the steps of the run so far.
        tools: specification by the name of the tool.
        moves: the latest moves of the agents, oldest first, at most 48.
        values: index of the values that occurred so far.
        agents: names of the agents that have acted or have a system prompt.
        has_unknown_content: whether a step may have content that the recording or the importer omitted.
        has_input: whether the recording has an input of the agents so far: a task, a prompt or a message.
        has_tool_servers: whether an entry of the tools offers tools with other names, as an MCP server or a
            hosted tool of a model API does.
    """

    def __init__(
        self,
        *,
        task: str = "",
        tools: Sequence[ToolSpec] = (),
        system_prompts: Mapping[str, str] | None = None,
        exit_status: str | None = None,
        is_content_recorded: bool = True,
    ) -> None:
        self.task = task
        self.exit_status = exit_status
        self.has_unknown_content = not is_content_recorded
        self.tools = {tool.name: tool for tool in tools}
        self.has_input = bool(task or system_prompts)
        self.has_tool_servers = any(tool.extra.get("type") not in _PLAIN_TOOL_TYPES for tool in tools)
        self.system_prompts = dict(system_prompts or {})
        self._steps: list[Step] = []
        self.steps: Sequence[Step] = StepSequence(self._steps)
        self.moves: list[Move] = []
        self.values = ValueIndex()
        self.agents: dict[str, None] = {name: None for name in self.system_prompts if name}
        self._facts: dict[int, StepFacts] = {}
        self._staged: StepFacts | None = None
        self._current = StepFacts(Step(index=-1, source=Source.SYSTEM, agent=""))
        self._validators: dict[str, jsonschema_rs.Validator | None] = {}
        self._last_validation: tuple[ToolCall | None, list[jsonschema_rs.ValidationError]] = (None, [])
        self._new_results: tuple[ToolResult, ...] = ()
        self._open_move: Move | None = None
        self._unindexed_results: tuple[ToolResult, ...] = ()
        self._index_initial_texts()

    @classmethod
    def from_trajectory(cls, trajectory: Trajectory) -> RunView:
        """Build a view of a recorded run before its first step."""
        return cls(
            task=trajectory.task,
            tools=trajectory.tools,
            system_prompts=trajectory.system_prompts,
            exit_status=trajectory.exit_status,
            is_content_recorded=trajectory.is_content_recorded,
        )

    def takes_free_text(self, call: ToolCall) -> bool:
        """Return True for a call of a custom tool of a model API, whose input is any text."""
        spec = self.tools.get(call.name)
        return "custom" in str(call.extra.get("type", "")) or (
            spec is not None and spec.extra.get("type") == "custom" and not spec.parameters
        )

    def append(self, step: Step) -> StepFacts:
        """Append a step and return its facts; only the runner calls this, never a detector."""
        self._index_pending_results()
        facts, ahead = StepFacts(step, self._new_results), self._staged
        if ahead is not None:
            facts.reuse_proposed(ahead)
            self._staged = None
        self._steps.append(step)
        self.has_unknown_content = self.has_unknown_content or bool(step.unknown_parts)
        self._facts[step.index] = self._current = facts
        if len(self._facts) > _MAX_FACTS:
            del self._facts[next(iter(self._facts))]
        if facts.is_agent:
            self._add_move(facts)
        else:
            self.has_input = True
            self._add_reply(facts)
        return facts

    def get_facts(self, step: Step) -> StepFacts:
        """Return the facts of a step.

        The view caches the facts of the latest 64 steps.
        """
        if step is self._current.step:
            return self._current
        if self._staged is not None and step is self._staged.step:
            return self._staged
        facts = self._facts.get(step.index)
        return facts if facts is not None and facts.step is step else StepFacts(step)

    def get_recent(self, count: int) -> Sequence[Step]:
        """Return the latest ``count`` steps, oldest first."""
        start = max(0, len(self.steps) - count)
        return [self.steps[i] for i in range(start, len(self.steps))]

    def get_validator(self, tool: str) -> jsonschema_rs.Validator | None:
        """Return the compiled JSON Schema of a tool; None if the tool has no valid schema.

        Remote references are never resolved; regular expressions run on an engine without backtracking.
        """
        if tool not in self._validators:
            spec = self.tools.get(tool)
            self._validators[tool] = _compile_schema(spec.parameters) if spec and spec.parameters else None
        return self._validators[tool]

    def get_violations(self, call: ToolCall | None) -> list[jsonschema_rs.ValidationError]:
        """Return the first errors of a parsed call against its schema; the latest result is cached."""
        if call is None or call.arguments is None:
            return []
        if self._last_validation[0] is not call:
            validator = self.get_validator(call.name)
            self._last_validation = (call, _collect_errors(validator, call.arguments) if validator else [])
        return self._last_validation[1]

    def _add_move(self, facts: StepFacts) -> None:
        self.agents.setdefault(facts.step.agent, None)
        self._new_results = facts.results
        self._unindexed_results = facts.results
        self._open_move = None
        if facts.key is not None:
            self._open_move = Move(facts, facts.key, facts.outcome, facts.has_error)
            self.moves.append(self._open_move)
            del self.moves[:-_MAX_MOVES]

    def _add_reply(self, facts: StepFacts) -> None:
        step = facts.step
        self._new_results += facts.results
        self._unindexed_results = tuple(result for result in facts.results if result.field != "content")
        if step.source is Source.USER:
            self._index_offer(step)
        if step.content:
            low = facts.lower_text
            self.values.add(low, from_user=step.source is Source.USER)
            # A user message is the outcome of a message, not of an action.
            if self._open_move is not None and not (
                step.source is Source.USER and self._open_move.facts.actions
            ):
                self._open_move.outcome = hash((self._open_move.outcome, low))
        if self._open_move is not None and facts.results:
            self._open_move.outcome = hash((self._open_move.outcome, facts.outcome))
            self._open_move.has_error = self._open_move.has_error or facts.has_error

    def _index_offer(self, step: Step) -> None:
        """Index the turn before a user message, because the user knows the values in it."""
        previous = self._facts.get(step.index - 1)
        if previous is not None and previous.is_agent and previous.step.content:
            self.values.add(previous.lower_text)

    def stage(self, step: Step) -> None:
        """Set the proposed turn, which the guard may reject.

        Only the runner calls this method. The next `append` clears the proposed turn.
        """
        self._index_pending_results()
        self._staged = StepFacts(step, self._new_results)

    def _index_pending_results(self) -> None:
        """Index the results of the previous step when the next one begins.

        With an earlier index, the result of a call would be a source of the arguments of that call.
        """
        for result in self._unindexed_results:
            self.values.add(result.lower_text)
        self._unindexed_results = ()

    def _index_initial_texts(self) -> None:
        self.values.add(to_lower(self.task), is_initial=True)
        for prompt in self.system_prompts.values():
            self.values.add(to_lower(prompt), is_initial=True)
        for tool in self.tools.values():
            schema = canonicalize_json(tool.parameters) if tool.parameters else ""
            self.values.add(to_lower(f"{tool.name} {tool.description} {schema}"), is_initial=True)


def _collect_errors(
    validator: jsonschema_rs.Validator, arguments: Mapping[str, Any]
) -> list[jsonschema_rs.ValidationError]:
    data = dict(arguments)
    try:
        return [] if validator.is_valid(data) else list(islice(validator.iter_errors(data), _MAX_ERRORS))
    except (ValueError, TypeError, OverflowError):  # a value that JSON cannot represent
        return []


def _reject_remote(uri: str) -> Any:
    raise ValueError(f"{len(uri)} characters of a remote reference: never resolved")


def _compile_schema(schema: Mapping[str, Any]) -> jsonschema_rs.Validator | None:
    try:
        data = orjson.dumps(schema, default=dict)
    except TypeError:  # integers beyond 64 bits, or a lone surrogate
        return _build_validator(dict(schema))
    return _compile_schema_json(data) if len(data) <= _MAX_CACHED_BYTES else _build_validator(dict(schema))


@lru_cache(maxsize=512)
def _compile_schema_json(data: bytes) -> jsonschema_rs.Validator | None:
    """Compile a schema once for all runs that offer the tool."""
    return _build_validator(orjson.loads(data))


def _build_validator(schema: dict[str, Any]) -> jsonschema_rs.Validator | None:
    try:
        return jsonschema_rs.validator_for(
            schema, retriever=_reject_remote, pattern_options=jsonschema_rs.RegexOptions()
        )
    except Exception:  # a tool with an invalid schema is not checked
        return None
