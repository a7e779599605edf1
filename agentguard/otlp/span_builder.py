"""Builder of the spans of a run: the run, each step of each branch, and each executed tool.

An agent's step is a ``chat`` span, and a tool result is an ``execute_tool`` span inside it. A step of any
other source has its own span. An abandoned branch is a span that contains its steps. Names follow
OpenTelemetry's conventions for generative AI (Development). OpenInference's span kinds and texts are added,
which Phoenix shows. Attributes of `agentguard.trajectory.span_attributes` preserve the data that the importer
needs. Missing times are generated in the order of the steps, and marked.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeGuard

from agentguard.otlp import genai_messages
from agentguard.otlp.model import AttributeValue, OtlpSpan, build_span_id, build_trace_id
from agentguard.trajectory import span_attributes
from agentguard.trajectory.model import Branch, Observation, Source, Step, ToolCall, Trajectory

_GAP_NS: Final = 1_000
_MAX_TIME_S: Final = 9_000_000_000  # in nanoseconds it still fits 64 bits
StepPosition = tuple[str, int]
"""Branch id (empty for the current branch) and index of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpans:
    """Spans of a run, the root first, and the span id of each step."""

    spans: tuple[OtlpSpan, ...]
    span_id_by_step: Mapping[StepPosition, str]


class _StepClock:
    """Clock that yields start and end of each step of a branch, as recorded but in non-decreasing order.

    A step without times follows the previous step directly, and precedes the recorded times of later steps.
    """

    def __init__(self, at_s: float, steps: Sequence[Step]) -> None:
        self._now_ns = to_nanoseconds(at_s)
        self._upper_bounds_ns: list[int] = []
        upper_bound_ns = to_nanoseconds(_MAX_TIME_S)
        for step in reversed(steps):
            self._upper_bounds_ns.append(upper_bound_ns)
            upper_bound_ns = min(
                (
                    upper_bound_ns,
                    *(
                        to_nanoseconds(time_s)
                        for time_s in (step.started_at, step.ended_at)
                        if time_s is not None
                    ),
                )
            )

    def next_interval(self, step: Step) -> tuple[int, int, str]:
        """Return start and end of the next step, and which of the two were recorded."""
        upper_bound_ns = self._upper_bounds_ns.pop()
        start = None if step.started_at is None else to_nanoseconds(step.started_at)
        end = None if step.ended_at is None else to_nanoseconds(step.ended_at)
        time_sources = {(True, True): "both", (True, False): "start", (False, True): "end"}
        time_source = time_sources.get((start is not None, end is not None), "none")
        likely = min(self._now_ns + _GAP_NS, upper_bound_ns, upper_bound_ns if end is None else end)
        self._now_ns = begin = max(likely if start is None else start, self._now_ns)
        return begin, max(begin, begin if end is None else end), time_source


def build_spans(run: Trajectory, *, include_content: bool = True, at_s: float | None = None) -> RunSpans:
    """Build the spans of a run.

    Args:
        run: the run.
        include_content: include prompts, messages, arguments and results;
            if False, only names, times and counts.
        at_s: start of a run whose steps have no times, in epoch seconds; the default is now.
    """
    return _SpanBuilder(run, include_content, time.time() if at_s is None else at_s).build()


class _SpanBuilder:
    def __init__(self, run: Trajectory, include_content: bool, at_s: float) -> None:
        self._run, self._include_content = run, include_content
        self._trace_id = build_trace_id(run.id)
        self._root_id = build_span_id(self._trace_id, "run")
        times = (time for step in run.steps for time in (step.started_at, step.ended_at))
        self._at_s = min((time for time in times if time is not None), default=at_s)
        self._span_id_by_step: dict[StepPosition, str] = {}

    def build(self) -> RunSpans:
        spans = [*self._build_step_spans("", self._run.steps, self._root_id)]
        for branch in self._run.branches:
            spans += self._build_branch_spans(branch)
        start = min((span.start_ns for span in spans), default=to_nanoseconds(self._at_s))
        end = max((span.end_ns for span in spans), default=start)
        return RunSpans(
            spans=(self._build_root_span(start, end), *spans), span_id_by_step=self._span_id_by_step
        )

    def _build_root_span(self, start: int, end: int) -> OtlpSpan:
        agents = list(dict.fromkeys(one.agent for one in self._run.steps if one.source is Source.AGENT))
        single = len(agents) == 1
        kind = "invoke_agent" if single else "invoke_workflow"
        name = agents[0] if single else ""
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": kind,
            "openinference.span.kind": "AGENT" if single else "CHAIN",
            span_attributes.RUN_ID: self._run.id,
        }
        if name:
            attributes["gen_ai.agent.name"] = name
        if self._run.exit_status is not None:
            attributes[span_attributes.EXIT_STATUS] = self._run.exit_status
        if self._run.unknown_parts:
            attributes[span_attributes.UNKNOWN_PARTS] = genai_messages.to_json_text(
                dict(self._run.unknown_parts)
            )
        if not self._run.is_content_recorded:
            attributes[span_attributes.CONTENT_RECORDED] = False
        conversation = self._run.extra.get("conversation")
        if isinstance(conversation, str) and conversation:
            attributes["gen_ai.conversation.id"] = conversation
            attributes["session.id"] = conversation
        if self._include_content:
            attributes |= self._build_root_content()
        return OtlpSpan(
            trace_id=self._trace_id,
            span_id=self._root_id,
            parent_id=None,
            name=f"{kind} {name}".strip(),
            start_ns=start,
            end_ns=end,
            attributes=attributes,
        )

    def _build_root_content(self) -> dict[str, AttributeValue]:
        """Return the input and the final output of the run."""
        run, attributes = self._run, dict[str, AttributeValue]()
        if run.task:
            attributes |= {
                "gen_ai.input.messages": genai_messages.format_task_message(run.task),
                "input.value": run.task,
            }
        last_step = next((step for step in reversed(run.steps) if step.source is Source.AGENT), None)
        if last_step is not None and last_step.content:
            attributes |= {
                "gen_ai.output.messages": genai_messages.format_output_messages(last_step),
                "output.value": last_step.content,
            }
        if run.tools:
            attributes["gen_ai.tool.definitions"] = genai_messages.format_tool_definitions(run.tools)
        if "" in run.system_prompts:
            attributes["gen_ai.system_instructions"] = genai_messages.format_system_instructions(
                run.system_prompts[""]
            )
        return attributes

    def _build_branch_spans(self, branch: Branch) -> Iterator[OtlpSpan]:
        span_id = build_span_id(self._trace_id, "branch", branch.id)
        steps = list(self._build_step_spans(branch.id, branch.steps, span_id))
        start = min((span.start_ns for span in steps), default=to_nanoseconds(self._at_s))
        attributes: dict[str, AttributeValue] = {
            "openinference.span.kind": "CHAIN",
            span_attributes.BRANCH: branch.id,
            span_attributes.FORK_STEP: branch.fork_step,
        }
        if branch.parent is not None:
            attributes[span_attributes.PARENT] = branch.parent
        if branch.reason and self._include_content:
            attributes |= {span_attributes.REASON: branch.reason, "output.value": branch.reason}
        yield OtlpSpan(
            trace_id=self._trace_id,
            span_id=span_id,
            parent_id=self._root_id,
            name="abandoned line",
            start_ns=start,
            end_ns=max((span.end_ns for span in steps), default=start),
            attributes=attributes,
        )
        yield from steps

    def _build_step_spans(self, branch_id: str, steps: Sequence[Step], parent_id: str) -> Iterator[OtlpSpan]:
        clock, since = _StepClock(self._at_s, steps), list[Step]()
        prompted: set[str] = {""}
        for step in steps:
            start, end, time_source = clock.next_interval(step)
            span_id = self._span_id_by_step[branch_id, step.index] = build_span_id(
                self._trace_id, "step", branch_id, step.index
            )
            attributes = {**self._build_own_attributes(branch_id, step), span_attributes.TIMES: time_source}
            if step.source is Source.AGENT:
                attributes |= self._build_chat_attributes(step, since)
                if (
                    self._include_content
                    and step.agent not in prompted
                    and step.agent in self._run.system_prompts
                ):
                    prompt = self._run.system_prompts[step.agent]
                    attributes["gen_ai.system_instructions"] = genai_messages.format_system_instructions(
                        prompt
                    )
                    prompted.add(step.agent)
                name, since = f"chat {step.model or ''}".strip(), [step]
            else:
                attributes["openinference.span.kind"] = "CHAIN"
                if self._include_content:
                    attributes["output.value"] = step.content
                name = step.source.value
                since.append(step)
            yield OtlpSpan(
                trace_id=self._trace_id,
                span_id=span_id,
                parent_id=parent_id,
                name=name,
                start_ns=start,
                end_ns=end,
                attributes=attributes,
            )
            for place, observation in enumerate(step.observations):
                yield self._build_tool_span(
                    branch_id, step, place, observation, parent_id=span_id, end_ns=end
                )

    def _build_own_attributes(self, branch_id: str, step: Step) -> dict[str, AttributeValue]:
        attributes: dict[str, AttributeValue] = {
            span_attributes.STEP: step.index,
            span_attributes.SOURCE: step.source.value,
            "gen_ai.agent.name": step.agent,
        }
        if branch_id:
            attributes[span_attributes.BRANCH] = branch_id
        if step.unknown_parts:
            attributes[span_attributes.UNKNOWN_PARTS] = genai_messages.to_json_text(list(step.unknown_parts))
        if step.stop_reason is not None:
            attributes["gen_ai.response.finish_reasons"] = (step.stop_reason,)
        return attributes

    def _build_chat_attributes(self, step: Step, inputs: Sequence[Step]) -> dict[str, AttributeValue]:
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": "chat",
            "openinference.span.kind": "LLM",
        }
        if step.model is not None:
            attributes |= {"gen_ai.request.model": step.model, "llm.model_name": step.model}
        if step.usage is not None:
            usage = step.usage
            counts = (
                (usage.prompt_tokens, ("gen_ai.usage.input_tokens", "llm.token_count.prompt")),
                (usage.completion_tokens, ("gen_ai.usage.output_tokens", "llm.token_count.completion")),
                (usage.cached_tokens, ("gen_ai.usage.cache_read.input_tokens",)),
                (usage.cost_usd, ("gen_ai.usage.cost", "llm.cost.total")),
            )
            attributes |= {name: count for count, names in counts if _is_valid_count(count) for name in names}
        if self._include_content:
            attributes["gen_ai.output.messages"] = genai_messages.format_output_messages(step)
            if step.content:
                attributes["output.value"] = step.content
            if input_messages := genai_messages.format_input_messages(inputs):
                attributes["gen_ai.input.messages"] = input_messages
                attributes["input.value"] = input_messages
        return attributes

    def _build_tool_span(
        self,
        branch_id: str,
        step: Step,
        place: int,
        observation: Observation,
        *,
        parent_id: str,
        end_ns: int,
    ) -> OtlpSpan:
        call = next((tool_call for tool_call in step.tool_calls if tool_call.id == observation.call_id), None)
        name = observation.tool if observation.tool is not None else call.name if call else ""
        return OtlpSpan(
            trace_id=self._trace_id,
            span_id=build_span_id(self._trace_id, "tool", branch_id, step.index, place),
            parent_id=parent_id,
            name=f"execute_tool {name}".strip(),
            start_ns=end_ns,
            end_ns=end_ns,
            attributes=self._build_tool_attributes(branch_id, name, place, observation, call),
            error=observation.is_error,
            message=observation.content[:200] if observation.is_error and self._include_content else "",
        )

    def _build_tool_attributes(
        self, branch_id: str, name: str, place: int, observation: Observation, call: ToolCall | None
    ) -> dict[str, AttributeValue]:
        unpaired_kinds = {(True, True): "both", (True, False): "call", (False, True): "tool"}
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": "execute_tool",
            "openinference.span.kind": "TOOL",
            "gen_ai.tool.name": name,
            "tool.name": name,
            span_attributes.OBSERVATION: place,
        }
        if unpaired := unpaired_kinds.get((observation.call_id is None, observation.tool is None)):
            attributes[span_attributes.UNPAIRED] = unpaired
        if branch_id:
            attributes[span_attributes.BRANCH] = branch_id
        if observation.call_id is not None:
            attributes["gen_ai.tool.call.id"] = observation.call_id
        if self._include_content:
            if call is not None and (arguments := genai_messages.format_arguments(call)):
                attributes |= {"gen_ai.tool.call.arguments": arguments, "input.value": arguments}
            attributes |= {
                "gen_ai.tool.call.result": observation.content,
                "output.value": observation.content,
            }
        return attributes


def _is_valid_count(value: float | None) -> TypeGuard[float]:
    """Return whether a count or a cost is valid and fits the protocol."""
    return value is not None and 0 <= value < 2**53


def to_nanoseconds(seconds: float) -> int:
    """Return a time in nanoseconds, limited to the range of the protocol."""
    if seconds != seconds:
        return 1
    # Use fractions: a product of floats would be off by about 100 ns and would not round-trip.
    return max(1, round(Fraction(min(max(seconds, 0.0), _MAX_TIME_S)) * 1_000_000_000))
