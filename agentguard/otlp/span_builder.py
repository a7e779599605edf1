"""A run as spans: the run, each step of each line, and each tool that was executed.

An agent's step is a ``chat`` span, a tool's result an ``execute_tool`` span inside it, every other speaker's
step a span of its own; a line that was left is a span that holds its steps. Names follow OpenTelemetry's
conventions for generative AI (Development), with OpenInference's span kinds and texts beside them, which is
what Phoenix shows. What is needed to read a run back as it was is marked (`_otel_marks`). Times that were not
recorded are made up in the order of the steps, and marked.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeGuard

from agentguard.otlp import genai_messages
from agentguard.otlp.model import OtlpSpan, Value, span_id_of, trace_id_of
from agentguard.trajectory.formats._otel import own_attributes as marks
from agentguard.trajectory.model import Branch, Observation, Source, Step, ToolCall, Trajectory

_GAP_NS: Final = 1_000
_LATEST_S: Final = 9_000_000_000  # in nanoseconds it still fits 64 bits
Place = tuple[str, int]
"""Line (empty for the live one) and index of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanBuilder:
    """A run's spans, the root first, and which span is which step's."""

    spans: tuple[OtlpSpan, ...]
    of_step: Mapping[Place, str]


class _Clock:
    """Start and end of each step of a line: as recorded, but never before the step before.

    A step without times is just after that, and not after what is recorded of those that follow.
    """

    def __init__(self, at_s: float, steps: Sequence[Step]) -> None:
        self._now = nanos(at_s)
        self._bounds: list[int] = []
        bound = nanos(_LATEST_S)
        for step in reversed(steps):
            self._bounds.append(bound)
            bound = min((bound, *(nanos(one) for one in (step.started_at, step.ended_at) if one is not None)))

    def step(self, step: Step) -> tuple[int, int, str]:
        """Start and end of the next step, and which of the two were recorded."""
        bound = self._bounds.pop()
        start = None if step.started_at is None else nanos(step.started_at)
        end = None if step.ended_at is None else nanos(step.ended_at)
        known = {(True, True): "both", (True, False): "start", (False, True): "end"}
        told = known.get((start is not None, end is not None), "none")
        likely = min(self._now + _GAP_NS, bound, bound if end is None else end)
        self._now = begin = max(likely if start is None else start, self._now)
        return begin, max(begin, begin if end is None else end), told


def spans_of(run: Trajectory, *, content: bool = True, at_s: float | None = None) -> SpanBuilder:
    """The spans of a run.

    Args:
        run: the run.
        content: whether what was said, called and answered is in them; if not, only who, which, when and how
            much.
        at_s: when it was, where no step says; epoch seconds; now, if absent.
    """
    return _Writer(run, content, time.time() if at_s is None else at_s).spans()


class _Writer:
    def __init__(self, run: Trajectory, content: bool, at_s: float) -> None:
        self._run, self._content = run, content
        self._trace = trace_id_of(run.id)
        self._root = span_id_of(self._trace, "run")
        times = (time for step in run.steps for time in (step.started_at, step.ended_at))
        self._at_s = min((time for time in times if time is not None), default=at_s)
        self._of_step: dict[Place, str] = {}

    def spans(self) -> SpanBuilder:
        made = [*self._line("", self._run.steps, self._root)]
        for branch in self._run.branches:
            made += self._branch(branch)
        start = min((one.start_ns for one in made), default=nanos(self._at_s))
        end = max((one.end_ns for one in made), default=start)
        return SpanBuilder(spans=(self._whole(start, end), *made), of_step=self._of_step)

    def _whole(self, start: int, end: int) -> OtlpSpan:
        agents = list(dict.fromkeys(one.agent for one in self._run.steps if one.source is Source.AGENT))
        single = len(agents) == 1
        kind = "invoke_agent" if single else "invoke_workflow"
        name = agents[0] if single else ""
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": kind,
            "openinference.span.kind": "AGENT" if single else "CHAIN",
            marks.RUN_ID: self._run.id,
        }
        if name:
            attributes["gen_ai.agent.name"] = name
        conversation = self._run.extra.get("conversation")
        if isinstance(conversation, str) and conversation:
            attributes["gen_ai.conversation.id"] = conversation
            attributes["session.id"] = conversation
        if self._content:
            attributes |= self._given()
        return OtlpSpan(
            trace_id=self._trace,
            span_id=self._root,
            parent_id=None,
            name=f"{kind} {name}".strip(),
            start_ns=start,
            end_ns=end,
            attributes=attributes,
        )

    def _given(self) -> dict[str, Value]:
        """What the run was given, and what it gave in the end."""
        run, found = self._run, dict[str, Value]()
        if run.task:
            found |= {"gen_ai.input.messages": genai_messages.asked(run.task), "input.value": run.task}
        last = next((one for one in reversed(run.steps) if one.source is Source.AGENT), None)
        if last is not None and last.content:
            found |= {"gen_ai.output.messages": genai_messages.said(last), "output.value": last.content}
        if run.tools:
            found["gen_ai.tool.definitions"] = genai_messages.definitions(run.tools)
        if "" in run.system_prompts:
            found["gen_ai.system_instructions"] = genai_messages.instructions(run.system_prompts[""])
        return found

    def _branch(self, branch: Branch) -> Iterator[OtlpSpan]:
        own = span_id_of(self._trace, "branch", branch.id)
        steps = list(self._line(branch.id, branch.steps, own))
        start = min((one.start_ns for one in steps), default=nanos(self._at_s))
        attributes: dict[str, Value] = {
            "openinference.span.kind": "CHAIN",
            marks.BRANCH: branch.id,
            marks.FORK_STEP: branch.fork_step,
        }
        if branch.parent is not None:
            attributes[marks.PARENT] = branch.parent
        if branch.reason and self._content:
            attributes |= {marks.REASON: branch.reason, "output.value": branch.reason}
        yield OtlpSpan(
            trace_id=self._trace,
            span_id=own,
            parent_id=self._root,
            name="abandoned line",
            start_ns=start,
            end_ns=max((one.end_ns for one in steps), default=start),
            attributes=attributes,
        )
        yield from steps

    def _line(self, line: str, steps: Sequence[Step], parent: str) -> Iterator[OtlpSpan]:
        clock, since = _Clock(self._at_s, steps), list[Step]()
        prompted: set[str] = {""}
        for step in steps:
            start, end, told = clock.step(step)
            own = self._of_step[line, step.index] = span_id_of(self._trace, "step", line, step.index)
            attributes = {**self._marks(line, step), marks.TIMES: told}
            if step.source is Source.AGENT:
                attributes |= self._chat(step, since)
                if self._content and step.agent not in prompted and step.agent in self._run.system_prompts:
                    prompt = self._run.system_prompts[step.agent]
                    attributes["gen_ai.system_instructions"] = genai_messages.instructions(prompt)
                    prompted.add(step.agent)
                name, since = f"chat {step.model or ''}".strip(), [step]
            else:
                attributes["openinference.span.kind"] = "CHAIN"
                if self._content:
                    attributes["output.value"] = step.content
                name = step.source.value
                since.append(step)
            yield OtlpSpan(
                trace_id=self._trace,
                span_id=own,
                parent_id=parent,
                name=name,
                start_ns=start,
                end_ns=end,
                attributes=attributes,
            )
            for place, seen in enumerate(step.observations):
                yield self._tool(line, step, (place, seen), (own, end))

    def _marks(self, line: str, step: Step) -> dict[str, Value]:
        found: dict[str, Value] = {
            marks.STEP: step.index,
            marks.SOURCE: step.source.value,
            "gen_ai.agent.name": step.agent,
        }
        if line:
            found[marks.BRANCH] = line
        return found

    def _chat(self, step: Step, since: Sequence[Step]) -> dict[str, Value]:
        found: dict[str, Value] = {"gen_ai.operation.name": "chat", "openinference.span.kind": "LLM"}
        if step.model is not None:
            found |= {"gen_ai.request.model": step.model, "llm.model_name": step.model}
        if step.usage is not None:
            used = step.usage
            counts = (
                (used.prompt_tokens, ("gen_ai.usage.input_tokens", "llm.token_count.prompt")),
                (used.completion_tokens, ("gen_ai.usage.output_tokens", "llm.token_count.completion")),
                (used.cached_tokens, ("gen_ai.usage.cache_read.input_tokens",)),
                (used.cost_usd, ("gen_ai.usage.cost", "llm.cost.total")),
            )
            found |= {name: count for count, names in counts if _counts(count) for name in names}
        if self._content:
            found["gen_ai.output.messages"] = genai_messages.said(step)
            if step.content:
                found["output.value"] = step.content
            if heard := genai_messages.heard(since):
                found["gen_ai.input.messages"] = heard
                found["input.value"] = heard
        return found

    def _tool(
        self, line: str, step: Step, which: tuple[int, Observation], inside: tuple[str, int]
    ) -> OtlpSpan:
        place, seen = which
        parent, at = inside
        call = next((one for one in step.tool_calls if one.id == seen.call_id), None)
        name = seen.tool if seen.tool is not None else call.name if call else ""
        return OtlpSpan(
            trace_id=self._trace,
            span_id=span_id_of(self._trace, "tool", line, step.index, place),
            parent_id=parent,
            name=f"execute_tool {name}".strip(),
            start_ns=at,
            end_ns=at,
            attributes=self._executed(line, name, which, call),
            error=seen.is_error,
            message=seen.content[:200] if seen.is_error and self._content else "",
        )

    def _executed(
        self, line: str, name: str, which: tuple[int, Observation], call: ToolCall | None
    ) -> dict[str, Value]:
        place, seen = which
        missing = {(True, True): "both", (True, False): "call", (False, True): "tool"}
        found: dict[str, Value] = {
            "gen_ai.operation.name": "execute_tool",
            "openinference.span.kind": "TOOL",
            "gen_ai.tool.name": name,
            "tool.name": name,
            marks.OBSERVATION: place,
        }
        if unpaired := missing.get((seen.call_id is None, seen.tool is None)):
            found[marks.UNPAIRED] = unpaired
        if line:
            found[marks.BRANCH] = line
        if seen.call_id is not None:
            found["gen_ai.tool.call.id"] = seen.call_id
        if self._content:
            if call is not None and (given := genai_messages.arguments(call)):
                found |= {"gen_ai.tool.call.arguments": given, "input.value": given}
            found |= {"gen_ai.tool.call.result": seen.content, "output.value": seen.content}
        return found


def _counts(value: float | None) -> TypeGuard[float]:
    """Whether a count or a cost is one, and fits the protocol."""
    return value is not None and 0 <= value < 2**53


def nanos(seconds: float) -> int:
    """Nanoseconds of a time that is one; of any other the nearest that the protocol can hold."""
    if seconds != seconds:
        return 1
    # As fractions: a product of floats would be a hundred nanoseconds off, and no longer read back as it was.
    return max(1, round(Fraction(min(max(seconds, 0.0), _LATEST_S)) * 1_000_000_000))
