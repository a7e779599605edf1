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

from agentguard.detect.facts import Facts, Result, canonical
from agentguard.detect.text import lowered
from agentguard.detect.values import ValueIndex
from agentguard.trajectory.model import Source, Step, ToolCall, ToolSpec, Trajectory

_FACTS_KEPT = 64
_MOVES_KEPT = 48
_MAX_ERRORS = 5


@dataclass(slots=True)
class Move:
    """An agent's move and what came of it; ``outcome`` is None until something came back."""

    facts: Facts
    key: int
    outcome: int | None = None
    failed: bool = False

    @property
    def step(self) -> Step:
        """The step of the move."""
        return self.facts.step


class Steps(Sequence[Step]):
    """The steps so far, read-only."""

    def __init__(self) -> None:
        self._list: list[Step] = []

    def __len__(self) -> int:
        return len(self._list)

    def __getitem__(self, index: Any) -> Any:
        return self._list[index]

    def __iter__(self) -> Iterator[Step]:
        return iter(self._list)


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
        self.steps: Sequence[Step] = Steps()
        self.moves: deque[Move] = deque(maxlen=_MOVES_KEPT)
        self.values = ValueIndex()
        self.agents: dict[str, None] = {name: None for name in self.system_prompts if name}
        self._facts: dict[int, Facts] = {}
        self._ahead: Facts | None = None
        self._now = Facts(Step(index=-1, source=Source.SYSTEM, agent=""))
        self._validators: dict[str, jsonschema_rs.Validator | None] = {}
        self._checked: tuple[ToolCall | None, list[jsonschema_rs.ValidationError]] = (None, [])
        self._fresh: tuple[Result, ...] = ()
        self._open: Move | None = None
        self._unread: tuple[Result, ...] = ()
        self._index_basis()

    @classmethod
    def of(cls, trajectory: Trajectory) -> RunView:
        """A view of a recorded run before its first step."""
        return cls(task=trajectory.task, tools=trajectory.tools, system_prompts=trajectory.system_prompts)

    def append(self, step: Step) -> Facts:
        """Take in one more step; `Watcher` calls this, detectors do not. Returns the step's facts."""
        self._settle()
        facts, ahead = Facts(step, self._fresh), self._ahead
        if ahead is not None:
            facts.go_on(ahead)
            self._ahead = None
        self.steps._list.append(step)  # type: ignore[attr-defined]
        self._facts[step.index] = self._now = facts
        if len(self._facts) > _FACTS_KEPT:
            del self._facts[next(iter(self._facts))]
        if facts.is_agent:
            self._take_move(facts)
        else:
            self._take_reply(facts)
        return facts

    def facts(self, step: Step) -> Facts:
        """Facts of a step; those of the latest 64 steps are kept, older ones are computed again."""
        if step is self._now.step:
            return self._now
        if self._ahead is not None and step is self._ahead.step:
            return self._ahead
        found = self._facts.get(step.index)
        return found if found is not None and found.step is step else Facts(step)

    def recent(self, count: int) -> Sequence[Step]:
        """The latest ``count`` steps, oldest first."""
        start = max(0, len(self.steps) - count)
        return [self.steps[i] for i in range(start, len(self.steps))]

    def validator(self, tool: str) -> jsonschema_rs.Validator | None:
        """The tool's compiled JSON Schema, made at first use; None if there is none or it is not valid.

        Remote references are never resolved; regular expressions run on an engine without backtracking.
        """
        if tool not in self._validators:
            spec = self.tools.get(tool)
            self._validators[tool] = _compile(spec.parameters) if spec and spec.parameters else None
        return self._validators[tool]

    def violations(self, call: ToolCall | None) -> list[jsonschema_rs.ValidationError]:
        """The first errors of a call that parses against its tool's schema; two detectors share one check."""
        if call is None or call.arguments is None:
            return []
        if self._checked[0] is not call:
            validator = self.validator(call.name)
            self._checked = (call, _errors(validator, call.arguments) if validator else [])
        return self._checked[1]

    def _take_move(self, facts: Facts) -> None:
        self.agents.setdefault(facts.step.agent, None)
        self._fresh = facts.results
        self._unread = facts.results
        self._open = None
        if facts.key is not None:
            self._open = Move(facts, facts.key, facts.outcome, facts.failed)
            self.moves.append(self._open)

    def _take_reply(self, facts: Facts) -> None:
        step = facts.step
        self._fresh += facts.results
        self._unread = tuple(result for result in facts.results if result.field != "content")
        if step.content:
            low = facts.low
            self.values.add(low, said=step.source is Source.USER)
            # What a user says is the outcome of a message, not of an action.
            if self._open is not None and not (step.source is Source.USER and self._open.facts.actions):
                self._open.outcome = hash((self._open.outcome, low))
        if self._open is not None and facts.results:
            self._open.outcome = hash((self._open.outcome, facts.outcome))
            self._open.failed = self._open.failed or facts.failed

    def foresee(self, step: Step) -> None:
        """Look at a turn that may yet be refused; `Watcher` calls this. The next `append` ends it."""
        self._settle()
        self._ahead = Facts(step, self._fresh)

    def _settle(self) -> None:
        """Index the results of the step before, once the next one begins.

        Not earlier: an argument must not find its origin in its own effect.
        """
        for result in self._unread:
            self.values.add(result.low)
        self._unread = ()

    def _index_basis(self) -> None:
        self.values.add(lowered(self.task), basis=True)
        for prompt in self.system_prompts.values():
            self.values.add(lowered(prompt), basis=True)
        for tool in self.tools.values():
            text = f"{tool.name} {tool.description} {canonical(tool.parameters) if tool.parameters else ''}"
            self.values.add(lowered(text), basis=True)


def _errors(
    validator: jsonschema_rs.Validator, arguments: Mapping[str, Any]
) -> list[jsonschema_rs.ValidationError]:
    given = dict(arguments)
    try:
        return [] if validator.is_valid(given) else list(islice(validator.iter_errors(given), _MAX_ERRORS))
    except (ValueError, TypeError, OverflowError):  # a value that no JSON text could hold
        return []


def _no_remote(uri: str) -> Any:
    raise ValueError(f"{len(uri)} characters of a remote reference: never resolved")


def _compile(schema: Mapping[str, Any]) -> jsonschema_rs.Validator | None:
    try:
        return jsonschema_rs.validator_for(
            dict(schema), retriever=_no_remote, pattern_options=jsonschema_rs.RegexOptions()
        )
    except Exception:  # whatever is wrong with the schema, the tool simply has none that could be checked
        return None
