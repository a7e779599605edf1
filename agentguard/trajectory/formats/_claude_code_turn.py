"""Turns of a Claude Code run, and the steps of the texts that users and the client write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentguard.trajectory._json_node import JsonNode
from agentguard.trajectory._safe_json import dumps
from agentguard.trajectory.formats._claude_code_text import CLIENT, INTERRUPTION, classify_user_text
from agentguard.trajectory.formats._content_parts import ContentResult, MessageContent
from agentguard.trajectory.formats._step_builder import StepBuilder
from agentguard.trajectory.model import Source, Step, Usage
from agentguard.trajectory.usage import parse_usage

AGENT = "claude"
INTERRUPTED, API_ERROR = "interrupted", "api_error"
_ERROR_TAG = "<tool_use_error>"


@dataclass(slots=True, kw_only=True)
class ClaudeCodeTurn:
    """Steps that one API message or one line of another kind makes."""

    source_index: int
    agent: str = AGENT
    content: MessageContent = field(default_factory=MessageContent)
    results: list[tuple[ContentResult, float | None, dict[str, Any]]] = field(default_factory=list)
    started_at: float | None = None
    ended_at: float | None = None
    usage: Usage | None = None
    cost_usd: float | None = None
    model: str | None = None
    stop_reason: str | None = None
    steps: tuple[Step, ...] = ()

    def add_message(self, message: JsonNode, content: MessageContent, time: float | None) -> None:
        """Add a line of the API message; each line repeats the usage of the whole message."""
        self.content.extend(content)
        # The server of a hosted tool writes the result into the message of its call.
        self.results += [(result, None, {}) for result in content.results]
        self.started_at, self.ended_at = self.started_at or time, time
        self.usage = parse_usage(message.raw("usage")) or self.usage
        self.model = message.text_or("model") or self.model
        self.stop_reason = message.text_or("stop_reason") or self.stop_reason

    def build_steps(self) -> tuple[Step, ...]:
        """Return the steps, numbered from 0."""
        if self.steps:
            return self.steps
        builder = StepBuilder(agent=self.agent)
        usage = self.usage
        if self.cost_usd is not None:
            usage = replace(usage or Usage(), cost_usd=self.cost_usd)
        builder.add_turn(
            self.content.text,
            reasoning="\n".join(filter(None, self.content.reasoning)),
            tool_calls=self.content.calls,
            source_index=self.source_index,
            started_at=self.started_at,
            ended_at=self.ended_at,
            usage=usage,
            model=self.model,
            stop_reason=self.stop_reason,
            unknown_parts=self.content.unknown_parts,
        )
        for result, ended_at, extra in self.results:
            builder.add_result(
                result.content,
                call_id=result.call_id,
                tool=result.tool,
                is_error=True if result.content.startswith(_ERROR_TAG) else result.is_error,
                source_index=self.source_index,
                ended_at=ended_at,
                unknown_parts=result.unknown_parts,
                extra=extra,
            )
        self.steps = tuple(builder.steps)
        return self.steps


def build_user_steps(
    content: MessageContent, event: JsonNode, position: int, *, is_client: bool
) -> list[Step]:
    """Return a step for each text of the client, and one for the words of the user."""
    steps: list[Step] = []
    words: list[str] = []
    for text in filter(None, content.texts):
        source = Source.SYSTEM if is_client else classify_user_text(text)
        if source is Source.USER:
            words.append(text)
        else:
            extra = {INTERRUPTED: True} if text.lstrip().startswith(INTERRUPTION) else {}
            steps.append(build_client_step(text, source, event, position, extra=extra))
    if words or content.unknown_parts:
        step = Step(
            index=0,
            source=Source.USER,
            agent=str(Source.USER),
            content="\n".join(words),
            started_at=event.timestamp_or("timestamp"),
            source_index=position,
            unknown_parts=tuple(content.unknown_parts),
        )
        steps.append(step)
    return steps


def build_client_step(
    text: str,
    source: Source,
    event: JsonNode,
    position: int,
    *,
    extra: dict[str, Any] | None = None,
    unknown_parts: Sequence[str] = (),
) -> Step:
    return Step(
        index=0,
        source=source,
        agent=CLIENT,
        content=text,
        started_at=event.timestamp_or("timestamp"),
        source_index=position,
        unknown_parts=tuple(unknown_parts),
        extra=extra or {},
    )


def build_orphan_step(result: ContentResult, event: JsonNode, position: int) -> Step:
    builder = StepBuilder()
    builder.add_result(
        result.content,
        call_id=result.call_id,
        tool=result.tool,
        is_error=result.is_error,
        source_index=position,
        ended_at=event.timestamp_or("timestamp"),
        unknown_parts=result.unknown_parts,
    )
    return builder.steps[0]


def collect_result_extra(event: JsonNode) -> dict[str, Any]:
    """Return the facts of ``toolUseResult`` that the result itself does not have."""
    details = event.raw("toolUseResult")
    if not isinstance(details, dict):
        return {}
    extra = {INTERRUPTED: True} if details.get(INTERRUPTED) is True else {}
    return extra | ({"agent_id": details["agentId"]} if isinstance(details.get("agentId"), str) else {})


def extract_error_text(event: JsonNode) -> str:
    error = event.raw("error")
    if isinstance(error, dict):
        message = error.get("message")
        return message if isinstance(message, str) and message else dumps(error).decode()
    return next((text for text in (error, event.raw("content")) if isinstance(text, str)), "API error")
