"""Spans that agentguard wrote itself (`agentguard.otlp`), read back to the run they were made of.

What spans do not hold stays lost: ``extra``, the modules of a step, places in the first source, and prompts
of agents that made no step. Spans whose marks do not make a run are read like anyone's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentguard.trajectory.formats import _otel_marks as marks
from agentguard.trajectory.formats._otel import Kind, Span, as_text, decoded, tool_specs, usage
from agentguard.trajectory.formats._otel_chat import messages
from agentguard.trajectory.model import Branch, Observation, Source, Step, Trajectory


def own_run(spans: Sequence[Span], *, format: str, extra: Mapping[str, Any]) -> Trajectory | None:
    """The run that ``spans`` were made of; None if they are not ours, or not enough of them are there."""
    root = next((one for one in spans if isinstance(one.attributes.get(marks.RUN_ID), str)), None)
    if root is None:
        return None
    lines: dict[str, dict[int, Span]] = {}
    inside: dict[str, dict[int, Span]] = {}
    for span in spans:
        index, place = _number(span, marks.STEP), _number(span, marks.OBSERVATION)
        if index is not None:
            lines.setdefault(_line(span), {})[index] = span
        elif place is not None and span.parent is not None:
            inside.setdefault(span.parent, {})[place] = span
    if not lines:
        return None
    made = {line: _steps(held, inside) for line, held in lines.items()}
    return Trajectory(
        id=str(root.attributes[marks.RUN_ID]),
        format=format,
        task=_task(root),
        steps=made.get("", ()),
        tools=tuple(tool_specs(root)),
        system_prompts=_prompts(root, lines),
        branches=tuple(_branch(one, made) for one in spans if _number(one, marks.FORK_STEP) is not None),
        extra=extra,
    )


def _number(span: Span, name: str) -> int | None:
    value = span.attributes.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _line(span: Span) -> str:
    return as_text(span.attributes.get(marks.LINE))


def _steps(held: Mapping[int, Span], inside: Mapping[str, Mapping[int, Span]]) -> tuple[Step, ...]:
    """The steps of a line, numbered without gaps: some of its spans may not have arrived."""
    first = min(held) if min(held) and _line(held[min(held)]) else 0
    return tuple(
        _step(first + place, held[index], inside.get(held[index].id, {}))
        for place, index in enumerate(sorted(held))
    )


def _step(index: int, span: Span, inside: Mapping[int, Span]) -> Step:
    told = as_text(span.attributes.get(marks.SOURCE))
    source = Source(told) if told in set(Source) else Source.AGENT
    message = next(iter(messages(span, "output")), None) if source is Source.AGENT else None
    times = span.attributes.get(marks.TIMES)
    model = span.attributes.get("gen_ai.request.model")
    return Step(
        index=index,
        source=source,
        agent=as_text(span.attributes.get("gen_ai.agent.name")),
        content=message.content if message else as_text(span.attributes.get("output.value")),
        reasoning=message.reasoning if message else "",
        tool_calls=message.calls if message else (),
        observations=tuple(_seen(inside[place]) for place in sorted(inside)),
        started_at=span.start if times in ("both", "start") else None,
        ended_at=span.end if times in ("both", "end") else None,
        usage=usage(span) if span.kind is Kind.LLM else None,
        model=model if isinstance(model, str) else None,
        source_index=span.position,
    )


def _seen(span: Span) -> Observation:
    missing = span.attributes.get(marks.UNPAIRED)
    call_id = span.attributes.get("gen_ai.tool.call.id")
    return Observation(
        content=as_text(span.attributes.get("gen_ai.tool.call.result")),
        call_id=call_id if isinstance(call_id, str) and missing not in ("call", "both") else None,
        tool=None if missing in ("tool", "both") else as_text(span.attributes.get("gen_ai.tool.name")),
        is_error=span.error,
    )


def _branch(span: Span, made: Mapping[str, tuple[Step, ...]]) -> Branch:
    parent = span.attributes.get(marks.PARENT)
    return Branch(
        id=_line(span),
        fork_step=_number(span, marks.FORK_STEP) or 0,
        steps=made.get(_line(span), ()),
        parent=parent if isinstance(parent, str) else None,
        reason=as_text(span.attributes.get(marks.REASON)),
    )


def _task(root: Span) -> str:
    return next((one.content for one in messages(root, "input") if one.content), "")


def _prompts(root: Span, lines: Mapping[str, Mapping[int, Span]]) -> dict[str, str]:
    found: dict[str, str] = {}
    steps = [held[index] for held in lines.values() for index in sorted(held)]
    for span in (root, *steps):
        prompt = as_text(decoded(span.attributes.get("gen_ai.system_instructions")))
        if prompt:
            agent = "" if span is root else as_text(span.attributes.get("gen_ai.agent.name"))
            found.setdefault(agent, prompt)
    return found
