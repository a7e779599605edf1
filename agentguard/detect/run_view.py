"""What a detector may see of a run: append-only, with all indices that detectors share.

Nothing in here grows with the number of steps but the list of steps itself: facts are kept for a window of
steps, moves for a window of moves, values in an index of bounded size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import jsonschema_rs

from agentguard.detect._text import to_lower
from agentguard.detect.step_facts import StepFacts, ToolResult, canonicalize_json
from agentguard.detect.value_tracking import ValueIndex
from agentguard.trajectory.model import Source, Step, ToolCall, ToolSpec, Trajectory

_MAX_FACTS = 64
_MAX_MOVES = 48
_MAX_ERRORS = 5


@dataclass(slots=True)
class Move:
    """An agent's move and what came of it; ``outcome`` is None until something came back."""

    facts: StepFacts
    key: int
    outcome: int | None = None
    has_error: bool = False

    @property
    def step(self) -> Step:
        """The step of the move."""
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
    """A run as far as it went.

    Args:
        task: what was asked.
        tools: tools offered to the agents.
        system_prompts: agent name to its system prompt; ``""`` is the key of one common to all.

    Attributes:
        steps: the steps so far.
        tools: tool name to its specification.
        moves: the latest moves of the agents, oldest first, at most 48.
        values: what appeared so far.
        agents: names of the agents that acted so far, or have a system prompt.
    """

    def __init__(
        self,
        *,
        task: str = "",
        tools: Sequence[ToolSpec] = (),
        system_prompts: Mapping[str, str] | None = None,
    ) -> None:
        self.task = task
        self.tools = {tool.name: tool for tool in tools}
        self.system_prompts = dict(system_prompts or {})
        self._steps: list[Step] = []
        self.steps: Sequence[Step] = StepSequence(self._steps)
        self.moves: deque[Move] = deque(maxlen=_MAX_MOVES)
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
        """A view of a recorded run before its first step."""
        return cls(task=trajectory.task, tools=trajectory.tools, system_prompts=trajectory.system_prompts)

    def append(self, step: Step) -> StepFacts:
        """Take in one more step; `Watcher` calls this, detectors do not. Returns the step's facts."""
        self._index_pending_results()
        facts, ahead = StepFacts(step, self._new_results), self._staged
        if ahead is not None:
            facts.reuse_proposed(ahead)
            self._staged = None
        self._steps.append(step)
        self._facts[step.index] = self._current = facts
        if len(self._facts) > _MAX_FACTS:
            del self._facts[next(iter(self._facts))]
        if facts.is_agent:
            self._add_move(facts)
        else:
            self._add_reply(facts)
        return facts

    def get_facts(self, step: Step) -> StepFacts:
        """Facts of a step; those of the latest 64 steps are kept, older ones are computed again."""
        if step is self._current.step:
            return self._current
        if self._staged is not None and step is self._staged.step:
            return self._staged
        found = self._facts.get(step.index)
        return found if found is not None and found.step is step else StepFacts(step)

    def get_recent(self, count: int) -> Sequence[Step]:
        """The latest ``count`` steps, oldest first."""
        start = max(0, len(self.steps) - count)
        return [self.steps[i] for i in range(start, len(self.steps))]

    def get_validator(self, tool: str) -> jsonschema_rs.Validator | None:
        """The tool's compiled JSON Schema, made at first use; None if there is none or it is not valid.

        Remote references are never resolved; regular expressions run on an engine without backtracking.
        """
        if tool not in self._validators:
            spec = self.tools.get(tool)
            self._validators[tool] = _compile_schema(spec.parameters) if spec and spec.parameters else None
        return self._validators[tool]

    def get_violations(self, call: ToolCall | None) -> list[jsonschema_rs.ValidationError]:
        """The first errors of a call that parses against its tool's schema; two detectors share one check."""
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

    def _add_reply(self, facts: StepFacts) -> None:
        step = facts.step
        self._new_results += facts.results
        self._unindexed_results = tuple(result for result in facts.results if result.field != "content")
        if step.content:
            low = facts.lower_text
            self.values.add(low, from_user=step.source is Source.USER)
            # What a user says is the outcome of a message, not of an action.
            if self._open_move is not None and not (
                step.source is Source.USER and self._open_move.facts.actions
            ):
                self._open_move.outcome = hash((self._open_move.outcome, low))
        if self._open_move is not None and facts.results:
            self._open_move.outcome = hash((self._open_move.outcome, facts.outcome))
            self._open_move.has_error = self._open_move.has_error or facts.has_error

    def stage(self, step: Step) -> None:
        """Look at a turn that may yet be refused; `Watcher` calls this. The next `append` ends it."""
        self._index_pending_results()
        self._staged = StepFacts(step, self._new_results)

    def _index_pending_results(self) -> None:
        """Index the results of the step before, once the next one begins.

        Not earlier: an argument must not find its origin in its own effect.
        """
        for result in self._unindexed_results:
            self.values.add(result.lower_text)
        self._unindexed_results = ()

    def _index_initial_texts(self) -> None:
        self.values.add(to_lower(self.task), is_initial=True)
        for prompt in self.system_prompts.values():
            self.values.add(to_lower(prompt), is_initial=True)
        for tool in self.tools.values():
            text = f"{tool.name} {tool.description} {canonicalize_json(tool.parameters) if tool.parameters else ''}"
            self.values.add(to_lower(text), is_initial=True)


def _collect_errors(
    validator: jsonschema_rs.Validator, arguments: Mapping[str, Any]
) -> list[jsonschema_rs.ValidationError]:
    given = dict(arguments)
    try:
        return [] if validator.is_valid(given) else list(islice(validator.iter_errors(given), _MAX_ERRORS))
    except (ValueError, TypeError, OverflowError):  # a value that no JSON text could hold
        return []


def _reject_remote(uri: str) -> Any:
    raise ValueError(f"{len(uri)} characters of a remote reference: never resolved")


def _compile_schema(schema: Mapping[str, Any]) -> jsonschema_rs.Validator | None:
    try:
        return jsonschema_rs.validator_for(
            dict(schema), retriever=_reject_remote, pattern_options=jsonschema_rs.RegexOptions()
        )
    except Exception:  # whatever is wrong with the schema, the tool simply has none that could be checked
        return None
