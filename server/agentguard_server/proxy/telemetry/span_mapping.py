"""A request as a span, in the words of OpenTelemetry's conventions for generative AI (Development).

Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/; OpenInference's names stand beside
them, as in `agentguard.otlp`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from agentguard.otlp.model import EVALUATION, OtlpSpan, SpanEvent, Value
from agentguard.trajectory.redaction import Redactor
from agentguard_server.proxy.hooks import CompletedRequest
from agentguard_server.proxy.telemetry.guard_headers import recoveries_of, run_of
from agentguard_server.proxy.telemetry.options import SpansOptions
from agentguard_server.proxy.telemetry.token_usage import tokens_of
from agentguard_server.proxy.telemetry.trace_context import trace_of

ENDS: Final = 4096
"""Bytes at both ends of an answer that tell what a span says of it."""

_OPERATIONS: Final[Mapping[str, str]] = {
    "chat": "chat",
    "responses": "chat",
    "messages": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
}
_ID: Final = re.compile(rb'(?<!\\)"id"\s*:\s*"([A-Za-z0-9_.:-]{1,200})"')
_MODEL: Final = re.compile(rb'(?<!\\)"model"\s*:\s*"([^"\\]{1,200})"')
_FINISHED: Final = re.compile(rb'(?<!\\)"(?:finish_reason|stop_reason)"\s*:\s*"([a-z_]{1,40})"')
_REDACTOR: Final = Redactor()


def to_span(
    recorded: CompletedRequest, ended_ns: int, options: SpansOptions, *, findings: Sequence[str] = ()
) -> OtlpSpan | None:
    """The span of a request; None if its trace is not recorded.

    Args:
        recorded: the request.
        ended_ns: when it was over, in nanoseconds since 1970.
        options: what is told.
        findings: codes of what was found in it.
    """
    trace = trace_of(recorded.asked, options.sample)
    if not trace.sampled:
        return None
    asked = recorded.asked
    operation = _OPERATIONS.get(asked.api, asked.api)
    failed = recorded.status >= 400 or not recorded.complete
    return OtlpSpan(
        trace_id=trace.trace_id,
        span_id=trace.span_id,
        parent_id=trace.parent_id,
        name=f"{operation} {_short(asked.model)}".strip(),
        start_ns=ended_ns - int(recorded.seconds * 1e9),
        end_ns=ended_ns,
        attributes=dict(_attributes(recorded, operation, options)),
        events=tuple(_evaluations(recorded, findings, ended_ns)),
        error=failed or None,
        message=recorded.error if failed else "",
        kind="client",
    )


def _attributes(
    recorded: CompletedRequest, operation: str, options: SpansOptions
) -> Iterator[tuple[str, Value]]:
    asked, run = recorded.asked, run_of(recorded.did) or recorded.asked.run
    yield "gen_ai.operation.name", operation
    yield "gen_ai.provider.name", "anthropic" if asked.api == "messages" else "openai"
    yield "openinference.span.kind", "EMBEDDING" if asked.api == "embeddings" else "LLM"
    yield "http.response.status_code", recorded.status
    yield "agentguard.request.id", asked.id
    yield "agentguard.request.stream", asked.stream
    texts = {
        "gen_ai.request.model": asked.model,
        "llm.model_name": asked.model,
        "gen_ai.conversation.id": run,
        "session.id": run,
        "agentguard.tenant": asked.tenant,
        "agentguard.replica": recorded.replica,
        "error.type": recorded.error or (str(recorded.status) if recorded.status >= 400 else ""),
    }
    yield from ((name, _short(value)) for name, value in texts.items() if value)
    yield from ((f"agentguard.note.{_short(name)}", _short(value)) for name, value in recorded.notes)
    if recorded.first_s is not None:
        yield "agentguard.first_byte_s", recorded.first_s
    if recorded.status < 300:
        yield from _answered(recorded.answer)
    if options.contents:
        yield "input.value", _content(asked.body, options.most_chars)
        yield "output.value", _content(recorded.answer, options.most_chars)


def _answered(answer: bytes) -> Iterator[tuple[str, Value]]:
    """What an answer says of itself, from both its ends."""
    head, tail = answer[:ENDS], answer[-ENDS:]
    for name, pattern in (("gen_ai.response.id", _ID), ("gen_ai.response.model", _MODEL)):
        if found := pattern.search(head):
            yield name, _short(found[1].decode("utf-8", "replace"))
    if finished := _FINISHED.findall(tail):
        yield "gen_ai.response.finish_reasons", tuple(one.decode() for one in finished[-8:])
    given, made = tokens_of(answer)
    if given:
        yield "gen_ai.usage.input_tokens", given
        yield "llm.token_count.prompt", given
    if made:
        yield "gen_ai.usage.output_tokens", made
        yield "llm.token_count.completion", made


def _evaluations(recorded: CompletedRequest, findings: Sequence[str], at_ns: int) -> Iterator[SpanEvent]:
    """What the guard said of the request: one event for each finding, and each recovery."""
    for code in findings:
        yield _event("agentguard.finding", code, at_ns)
    for name in recoveries_of(recorded.did):
        yield _event("agentguard.recovery", name, at_ns)


def _event(name: str, label: str, at_ns: int) -> SpanEvent:
    attributes = {"gen_ai.evaluation.name": name, "gen_ai.evaluation.score.label": label}
    return SpanEvent(name=EVALUATION, at_ns=at_ns, attributes=attributes)


@lru_cache(maxsize=1024)
def _short(text: str) -> str:
    return _REDACTOR.redact_text(text[:600])[:300]


def _content(body: bytes, most: int) -> str:
    return _REDACTOR.redact_text(body[: 4 * most].decode("utf-8", "replace"))[:most]
