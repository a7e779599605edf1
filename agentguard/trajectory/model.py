"""Model of a recorded agent run, common to all formats.

A *step* is the unit of rollback: one turn of an agent with its tool calls and, if the recording pairs them,
the observations that the calls returned. Some formats record the environment as a separate speaker
(Who&When). Its turns are steps with ``source=ENVIRONMENT``. Steps count from 0.

Rewards, labels and gold answers are in `Annotation`, beside the trajectory and never inside it. So no
detector and no feature can read them.

All classes are frozen; equality is by value, and the round-trip tests rely on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import orjson

Extra = Mapping[str, Any]

GOLD_ANSWER = "gold_answer"
"""Key of ``Trajectory.extra`` for the gold answer; only an evaluation ``with_answer`` sets it."""


class Source(StrEnum):
    """Producer of a step."""

    SYSTEM = "system"
    USER = "user"
    AGENT = "agent"
    ENVIRONMENT = "environment"


class Module(StrEnum):
    """Part of an agent's turn, after AgentErrorTaxonomy (arXiv 2509.25370)."""

    MEMORY = "memory"
    REFLECTION = "reflection"
    PLANNING = "planning"
    ACTION = "action"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """Tool that was offered to the agent; ``parameters`` is a JSON Schema object."""

    name: str
    description: str = ""
    parameters: Extra = field(default_factory=dict)
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """Tool call; ``arguments`` is None if the recorded text does not parse to an object.

    ``raw_arguments`` is that text, if the recording has text.
    """

    id: str
    name: str
    arguments: Extra | None = None
    raw_arguments: str | None = None
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Result from the environment; ``is_error`` is None if the recording has no error flag."""

    content: str
    call_id: str | None = None
    tool: str | None = None
    is_error: bool | None = None
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens and cost of a step, as recorded; ``prompt_tokens`` includes ``cached_tokens``."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Step of a run.

    Attributes:
        index: position in the trajectory, from 0.
        source: producer of the step.
        agent: name of the speaker, as normalised by the importer.
        content: text of the turn.
        reasoning: hidden or separate reasoning text, if recorded.
        modules: module name to text, if the format separates modules.
        tool_calls: calls of this step, in order.
        observations: results of the calls, in order; may be fewer than the calls.
        started_at, ended_at: epoch seconds, if recorded.
        usage: tokens and cost, if recorded.
        model: name of the model, if recorded.
        source_index: position of the step's first record in the source (message, span or line), from 0.
        stop_reason: reason why the model ended its turn, as recorded (``end_turn``, ``length``, …).
        unknown_parts: types of the content parts that the importer could not read, one entry a part. A step
            with unknown parts may have content that is not shown.
        extra: other fields of the source.
    """

    index: int
    source: Source
    agent: str
    content: str = ""
    reasoning: str = ""
    modules: Mapping[str, str] = field(default_factory=dict)
    tool_calls: tuple[ToolCall, ...] = ()
    observations: tuple[Observation, ...] = ()
    started_at: float | None = None
    ended_at: float | None = None
    usage: Usage | None = None
    model: str | None = None
    source_index: int | None = None
    stop_reason: str | None = None
    unknown_parts: tuple[str, ...] = ()
    extra: Extra = field(default_factory=dict)

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yield ``(field, text)`` of all readable texts of the step.

        Offsets of evidence refer to these texts.
        """
        if self.reasoning:
            yield "reasoning", self.reasoning
        if self.content:
            yield "content", self.content
        for i, call in enumerate(self.tool_calls):
            yield f"tool_calls[{i}]", call.raw_arguments or _format_compact_json(call.arguments)
        for i, observation in enumerate(self.observations):
            if observation.content:
                yield f"observations[{i}]", observation.content

    def text(self, name: str) -> str:
        """Return the text of a field with a name from `texts`; empty if the step does not have it."""
        if name == "content":
            return self.content
        if name.startswith("tool_calls["):  # fast path: most evidence refers to these two
            digits = name[11:-1]
            place = int(digits) if digits.isdecimal() and len(digits) < 6 else len(self.tool_calls)
            if place < len(self.tool_calls) and name == f"tool_calls[{place}]":
                return self.tool_calls[place].raw_arguments or _format_compact_json(
                    self.tool_calls[place].arguments
                )
            return ""
        return dict(self.texts()).get(name, "")

    def with_observations(self, observations: tuple[Observation, ...]) -> Step:
        """Return a copy with these observations; as fast as `with_index`."""
        return self._copy_with(
            self.index, observations, self.usage, self.model, self.started_at, self.ended_at
        )

    def with_times(self, started_at: float, ended_at: float) -> Step:
        """Return a copy with these times in epoch seconds; a recorded time has precedence."""
        if self.started_at is not None and self.ended_at is not None:
            return self
        return self._copy_with(
            self.index,
            self.observations,
            self.usage,
            self.model,
            started_at if self.started_at is None else self.started_at,
            ended_at if self.ended_at is None else self.ended_at,
        )

    def with_index(self, index: int) -> Step:
        """Return a copy with this index; several times faster than `dataclasses.replace`."""
        if index == self.index:
            return self
        return self._copy_with(
            index, self.observations, self.usage, self.model, self.started_at, self.ended_at
        )

    def with_usage(self, usage: Usage | None, model: str | None) -> Step:
        """Return a copy with this usage and model; as fast as `with_index`."""
        return self._copy_with(self.index, self.observations, usage, model, self.started_at, self.ended_at)

    def _copy_with(
        self,
        index: int,
        observations: tuple[Observation, ...],
        usage: Usage | None,
        model: str | None,
        started_at: float | None,
        ended_at: float | None,
    ) -> Step:
        return Step(
            index=index,
            source=self.source,
            agent=self.agent,
            content=self.content,
            reasoning=self.reasoning,
            modules=self.modules,
            tool_calls=self.tool_calls,
            observations=observations,
            started_at=started_at,
            ended_at=ended_at,
            usage=usage,
            model=model,
            source_index=self.source_index,
            stop_reason=self.stop_reason,
            unknown_parts=self.unknown_parts,
            extra=self.extra,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Abandoned branch.

    The steps follow step ``fork_step - 1`` of the branch ``parent``; None is the current branch.
    """

    id: str
    fork_step: int
    steps: tuple[Step, ...]
    parent: str | None = None
    reason: str = ""
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Run: the task, the inputs of the agents, and the steps of the current branch.

    Attributes:
        id: unique within its source.
        format: name of the importer that built it.
        task: task of the agents.
        steps: the current branch; ``steps[i].index == i``.
        tools: tools offered to the agents.
        system_prompts: agent name to its system prompt; ``""`` is the key of a prompt common to all.
        branches: abandoned branches (rolled back, forked).
        exit_status: reason why the run ended, as recorded (``Submitted``, ``max_turns``, …).
        unknown_parts: type of content part or event to the number of them that the importer could not read,
            those of `Step.unknown_parts` included.
        is_content_recorded: False if the source has no message content (a trace without content capture).
        extra: other fields of the source, except those that reveal a judgement of the run.
    """

    id: str
    format: str
    task: str
    steps: tuple[Step, ...]
    tools: tuple[ToolSpec, ...] = ()
    system_prompts: Mapping[str, str] = field(default_factory=dict)
    branches: tuple[Branch, ...] = ()
    exit_status: str | None = None
    unknown_parts: Mapping[str, int] = field(default_factory=dict)
    is_content_recorded: bool = True
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCause:
    """Annotated failure: the step (from 0; may be beyond the run), the agent, the module and the codes."""

    step: int | None = None
    agent: str | None = None
    module: str | None = None
    codes: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """Labels of a run from its data set. Never an input of a detector, a judge or a feature.

    Attributes:
        failed: True if the run failed, None if unknown.
        root_cause: the annotated root cause, if there is one.
        failures: all annotated failures of the run, with the root cause if it is listed.
        step_labels: step index to a process label: 1 right, 0 neutral, -1 wrong.
        modes: failure mode name to present or not.
        answer: the gold answer; an input only in the setting called ``with_answer``.
        group: question or task id for splits: runs with equal groups are always on the same side of a split.
        extra: other fields of the source that reveal a judgement of the run.
    """

    failed: bool | None = None
    root_cause: RootCause | None = None
    failures: tuple[RootCause, ...] = ()
    step_labels: Mapping[int, int] = field(default_factory=dict)
    modes: Mapping[str, bool] = field(default_factory=dict)
    answer: str | None = None
    group: str | None = None
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Imported run and its labels.

    Attributes:
        trajectory: the run.
        annotation: the labels.
        file: path of the file or folder that the run was read from; None for a stream or a parsed object.
        original_id: id of the run in its file, if it is not ``trajectory.id`` because another run
            has it; otherwise None.
    """

    trajectory: Trajectory
    annotation: Annotation = field(default_factory=Annotation)
    file: str | None = field(default=None, compare=False)
    original_id: str | None = field(default=None, compare=False)


def _format_compact_json(value: object) -> str:
    if value is None:
        return ""
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode(errors="replace")
    except (TypeError, ValueError):  # a huge number, half of a surrogate pair, deep nesting
        pass
    try:
        return repr(value)
    except RecursionError:
        return f"<{type(value).__name__}, nested too deeply>"
