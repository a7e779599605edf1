"""Importer of Who&When (arXiv 2505.00212): failed multi-agent runs with annotated agent, step and reason.

Its two subsets differ. In Algorithm-Generated, the speaker is ``name`` and the verdict ``is_correct``. In
Hand-Crafted, the speaker is ``role`` and the verdict ``is_corrected``; the addressee of a message follows the
name in brackets. ``mistake_step`` is text, counts from 0 over ``history``, and may be beyond its end. The
agent at that step is not always ``mistake_agent``. Steps are the entries of ``history``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from agentguard.trajectory.formats._content_parts import parse_content
from agentguard.trajectory.formats._step_builder import count_unknown_parts
from agentguard.trajectory.grouping import normalize_group_key
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Annotation, Record, RootCause, Source, Step, Trajectory

_VERDICT_FIELDS = ("is_correct", "is_corrected")
_ADDRESSEE_PATTERN = re.compile(r"\s*\((?:thought|termination condition|->[^()]*)\)\s*\Z", re.IGNORECASE)
_TASK_SPEAKERS = ("human", "user")
# Replies of the code executors of AutoGen and Magentic-One: they run code, report and decide nothing.
_EXECUTION_REPORT_PATTERN = re.compile(
    r"\s*(?:exitcode:|there is no code|no code block|the script ran, then exited)", re.IGNORECASE
)


class WhoAndWhen:
    """Importer of Who&When."""

    name = "who_and_when"
    summary = "Who&When: failed multi-agent runs with agent, step and reason"

    def score_match(self, value: Any) -> float:
        """Return a positive score for a ``history`` with a verdict or a mistake beside it."""
        if not isinstance(value, dict) or not isinstance(value.get("history"), list):
            return 0.0
        if not {*_VERDICT_FIELDS, "mistake_agent", "mistake_step"}.isdisjoint(value):
            return 0.95
        return 0.5 if "question" in value else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of a file."""
        node = JsonNode.from_value(value)
        question = node.text_or("question")
        steps = _build_steps(node)
        extra = {"question_id": node.scalar("question_ID")} if "question_ID" in node else {}
        yield Record(
            trajectory=Trajectory(
                id=name,
                format=self.name,
                task=question,
                steps=steps,
                system_prompts=_build_system_prompts(node),
                unknown_parts=count_unknown_parts(steps),
                extra=extra,
            ),
            annotation=_build_annotation(node, question),
        )


def parse_agent_name(role: str) -> str:
    """Return the agent in a speaker label, without the addressee in brackets."""
    return _ADDRESSEE_PATTERN.sub("", role).strip()


def _build_steps(node: JsonNode) -> tuple[Step, ...]:
    entries = list(node.nodes("history"))
    contents = [parse_content(entry.raw("content"), entry.field_path("content")) for entry in entries]
    texts = [content.text for content in contents]
    speakers = [parse_agent_name(entry.text_or("name") or entry.text("role")) for entry in entries]
    executors = _find_executors(speakers, texts)
    return tuple(
        Step(
            index=i,
            source=_resolve_source(speaker, executors),
            agent=speaker,
            content=content.text,
            source_index=i,
            unknown_parts=tuple(content.unknown_parts),
            extra=_collect_step_extra(entry),
        )
        for i, (entry, speaker, content) in enumerate(zip(entries, speakers, contents, strict=True))
    )


def _collect_step_extra(entry: JsonNode) -> dict[str, Any]:
    extra = entry.extra_fields("content", "name")
    if isinstance(entry.raw("content"), list):
        extra["content"] = entry.raw("content")
    return extra


def _find_executors(speakers: list[str], texts: list[str]) -> set[str]:
    """Return the speakers whose messages are all reports of code runs or of missing code."""
    texts_by_speaker: dict[str, list[str]] = defaultdict(list)
    for speaker, text in zip(speakers, texts, strict=True):
        texts_by_speaker[speaker].append(text)
    return {
        speaker
        for speaker, speaker_texts in texts_by_speaker.items()
        if all(_EXECUTION_REPORT_PATTERN.match(text) for text in speaker_texts)
    }


def _resolve_source(speaker: str, executors: set[str]) -> Source:
    if speaker.casefold() in _TASK_SPEAKERS:
        return Source.USER
    return Source.ENVIRONMENT if speaker in executors else Source.AGENT


def _build_system_prompts(node: JsonNode) -> dict[str, str]:
    if "system_prompt" not in node:
        return {}
    if isinstance(node.raw("system_prompt"), str):
        return {"": node.text("system_prompt")}
    prompts = node.node("system_prompt")
    return {agent: prompts.text_or(agent) for agent in prompts.data}


def _build_annotation(node: JsonNode, question: str) -> Annotation:
    marked = "mistake_step" in node or "mistake_agent" in node
    verdict = next((node.boolean(key) for key in _VERDICT_FIELDS if key in node), None)
    mapped_fields = ("history", "question", "question_ID", "system_prompt", "ground_truth")
    cause = None
    if marked:
        cause = RootCause(
            step=node.integer_or("mistake_step"),
            agent=parse_agent_name(node.text_or("mistake_agent")) or None,
            reason=node.text_or("mistake_reason"),
        )
    return Annotation(
        failed=(True if marked else None) if verdict is None else not verdict,
        root_cause=cause,
        failures=(cause,) if cause else (),
        answer=node.scalar_or("ground_truth") or None,
        group=normalize_group_key(question) or None,
        extra=node.extra_fields(
            *mapped_fields, *_VERDICT_FIELDS, "mistake_step", "mistake_agent", "mistake_reason"
        ),
    )


FORMAT = WhoAndWhen()
