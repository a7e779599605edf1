"""Builder of steps from the turns and results of a recording.

One step is one turn of an agent with the results of its calls. A result is added to the latest turn if that
turn has its call. A result of an earlier turn becomes an ENVIRONMENT step: adding it to the earlier turn
would show that turn later information.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from agentguard.trajectory.model import Branch, Observation, Source, Step, ToolCall, Trajectory, Usage


@dataclass(slots=True, kw_only=True)
class StepBuilder:
    """Builder of the steps of one run, fed in the order of the recording.

    Attributes:
        agent: name of the agent for turns without a name.
        steps: the steps so far.
        unknown_parts: number of the parts and events that the importer could not read, by type.
    """

    agent: str = "assistant"
    steps: list[Step] = field(default_factory=list)
    unknown_parts: Counter[str] = field(default_factory=Counter)
    _calls: tuple[ToolCall, ...] = ()
    _pending_calls: list[ToolCall] = field(default_factory=list)
    _turn_index: int = 0

    def add_turn(
        self,
        content: str = "",
        *,
        source: Source = Source.AGENT,
        agent: str = "",
        reasoning: str = "",
        tool_calls: Sequence[ToolCall] = (),
        source_index: int | None = None,
        started_at: float | None = None,
        ended_at: float | None = None,
        usage: Usage | None = None,
        model: str | None = None,
        stop_reason: str | None = None,
        unknown_parts: Iterable[str] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> int:
        """Add a turn and return the index of its step; the following results answer its calls."""
        return self.append_turn(
            Step(
                index=len(self.steps),
                source=source,
                agent=agent or (self.agent if source is Source.AGENT else str(source)),
                content=content,
                reasoning=reasoning,
                tool_calls=tuple(tool_calls),
                started_at=started_at,
                ended_at=ended_at,
                usage=usage,
                model=model,
                source_index=source_index,
                stop_reason=stop_reason,
                unknown_parts=tuple(unknown_parts),
                extra=extra or {},
            )
        )

    def append_turn(self, step: Step) -> int:
        """Append a finished step as the latest turn and return its index; it must be ``len(steps)``."""
        self._calls, self._pending_calls = step.tool_calls, list(step.tool_calls)
        self._turn_index = step.index
        return self.append_step(step)

    def append_step(self, step: Step) -> int:
        """Append a finished step that does not end the latest turn: its calls still wait for results."""
        self.unknown_parts.update(step.unknown_parts)
        self.steps.append(step)
        return step.index

    def add_result(
        self,
        content: str,
        *,
        call_id: str | None = None,
        tool: str | None = None,
        is_error: bool | None = None,
        source_index: int | None = None,
        ended_at: float | None = None,
        unknown_parts: Iterable[str] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> int:
        """Add a result and return the index of its step.

        Args:
            content: text of the result.
            call_id: id of the call that it answers. Without an id, it answers the first unanswered call, or
                the first one of ``tool``.
            tool: name of the tool.
            is_error: error flag of the recording; None without a flag.
            source_index: position of the result in the source, for a result without a call.
            ended_at: epoch seconds of the result, if recorded.
            unknown_parts: types of the parts of the result that the importer could not read.
            extra: other fields of the result.
        """
        call = self.find_call(call_id, tool)
        if call is None:
            ids = {"tool_call_id": call_id} if call_id else {}
            errors = {"is_error": is_error} if is_error is not None else {}
            step = Step(
                index=len(self.steps),
                source=Source.ENVIRONMENT,
                agent=tool or "tool",
                content=content,
                started_at=ended_at,
                source_index=source_index,
                unknown_parts=tuple(unknown_parts),
                extra={**ids, **errors, **(extra or {})},
            )
            return self.append_step(step)
        observation = Observation(
            content=content, call_id=call.id, tool=tool or call.name, is_error=is_error, extra=extra or {}
        )
        return self.attach_observation(call, observation, ended_at=ended_at, unknown_parts=unknown_parts)

    def find_call(self, call_id: str | None, tool: str | None = None) -> ToolCall | None:
        """Return the call of the latest turn that a result answers; two answers to one call count as one."""
        if call_id:
            return next((call for call in (*self._pending_calls, *self._calls) if call.id == call_id), None)
        return next((call for call in self._pending_calls if not tool or call.name == tool), None)

    def attach_observation(
        self,
        call: ToolCall,
        observation: Observation,
        *,
        ended_at: float | None = None,
        unknown_parts: Iterable[str] = (),
    ) -> int:
        """Add the result of a call of the latest turn to its step and return the index of that step."""
        self._pending_calls = [pending for pending in self._pending_calls if pending is not call]
        step = self.steps[self._turn_index].with_observations(
            (*self.steps[self._turn_index].observations, observation)
        )
        unknown = tuple(unknown_parts)
        if ended_at is not None or unknown:
            self.unknown_parts.update(unknown)
            step = replace(
                step, ended_at=ended_at or step.ended_at, unknown_parts=step.unknown_parts + unknown
            )
        self.steps[step.index] = step
        return step.index

    def add_unknown(self, kind: str) -> None:
        """Count a part or an event outside a step that the importer could not read."""
        self.unknown_parts[kind] += 1

    def build_trajectory(self, id: str, format: str, **fields: Any) -> Trajectory:
        """Return the run with the steps so far.

        Args:
            id: id of the run.
            format: name of the importer.
            fields: other fields of `Trajectory`. By default, ``task`` is the first user turn, and
                ``system_prompts`` has the leading system turns.
        """
        steps = tuple(self.steps)
        fields.setdefault("task", next((step.content for step in steps if step.source is Source.USER), ""))
        fields.setdefault("system_prompts", collect_system_prompts(steps))
        unknown_parts = dict(sorted(self.unknown_parts.items()))
        return Trajectory(id=id, format=format, steps=steps, unknown_parts=unknown_parts, **fields)


def count_unknown_parts(steps: Iterable[Step], branches: Iterable[Branch] = ()) -> dict[str, int]:
    """Return type to number of the unknown parts of steps, and of the steps of branches."""
    every_step = chain(steps, *(branch.steps for branch in branches))
    return add_unknown_parts({}, (part for step in every_step for part in step.unknown_parts))


def add_unknown_parts(counts: Mapping[str, int], kinds: Iterable[str]) -> dict[str, int]:
    """Return type to number of unknown parts, with further parts, in order of the type."""
    return dict(sorted((Counter(counts) + Counter(kinds)).items()))


def collect_system_prompts(steps: Sequence[Step]) -> dict[str, str]:
    """Return the text of the leading system steps under ``""``."""
    leading = []
    for step in steps:
        if step.source is not Source.SYSTEM:
            break
        leading.append(step.content)
    return {"": "\n\n".join(leading)} if leading else {}
