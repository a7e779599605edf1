"""Step of a trace under construction."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentguard.trajectory.formats._otel.spans import (
    OperationKind,
    SourceSpan,
    collect_unmapped,
    parse_span_usage,
)
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, Usage


@dataclass(slots=True)
class StepDraft:
    """Step under construction; ``parent`` is the position of its span's parent."""

    source: Source
    agent: str
    span: SourceSpan
    parent: int | None = None
    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    stop_reason: str = ""
    usage: Usage | None = None
    model: str = ""
    unknown_parts: list[str] = field(default_factory=list)
    is_copied_context: bool = False

    @property
    def is_model_call(self) -> bool:
        """Return True if the span records this turn and not only its copy in a later prompt."""
        is_call = self.source is Source.AGENT and self.span.kind is OperationKind.LLM
        return is_call and not self.is_copied_context

    @property
    def has_content(self) -> bool:
        """Return True if a text, an argument or a result was recorded."""
        texts = (self.content, self.reasoning, *(call.raw_arguments for call in self.tool_calls))
        results = (one.content for one in self.observations if one.call_id is not None)
        return any(texts) or any(results) or any(call.arguments for call in self.tool_calls)

    def build_step(self, index: int) -> Step:
        """Return the finished step."""
        span, is_agent = self.span, self.source is Source.AGENT
        start, end = (None, None) if self.is_copied_context else (span.start, span.end)
        extra = {"is_copied_context": True} if self.is_copied_context else {}
        # As in ATIF: an earlier run did the work of a copied turn, and here it is a part of the prompt.
        is_copied_work = is_agent and self.is_copied_context
        return Step(
            index=index,
            source=Source.SYSTEM if is_copied_work else self.source,
            agent=self.agent,
            content=self.content,
            reasoning=self.reasoning,
            tool_calls=tuple(self.tool_calls),
            observations=tuple(self.observations),
            started_at=start,
            ended_at=end if is_agent else start,
            usage=(parse_span_usage(span) or self.usage) if self.is_model_call else None,
            model=(span.get_text("model") or self.model or None) if self.is_model_call else None,
            source_index=span.position,
            stop_reason=self.stop_reason or None,
            unknown_parts=tuple(self.unknown_parts),
            extra=collect_unmapped(span) if self.is_model_call else extra,
        )


@dataclass(frozen=True, slots=True)
class SpanContext:
    """Context that a span inherits from its ancestors: the active agent and the nearest relevant span."""

    agent: str = "agent"
    nearest_ancestor: int | None = None
    in_tool: bool = False


def summarize_failure(text: str) -> str:
    """Return the exception of a failure in one line, without its stack."""
    head = text.partition("Traceback (most recent call last)")[0].strip()
    lines = (head or text.strip()).splitlines()
    return (lines[0] if head else lines[-1]).strip() if lines else ""
