"""Who&When (arXiv 2505.00212): multi-agent runs that failed, annotated with agent, step and reason.

Its two subsets differ. In Algorithm-Generated the speaker is ``name`` and the verdict ``is_correct``; in
Hand-Crafted the speaker is ``role`` and the verdict ``is_corrected``, and what one agent says to itself or to
another stands in brackets after its name. ``mistake_step`` is text, counts from 0 over ``history``, and may
lie beyond it; the agent at that step is not always ``mistake_agent``. Steps are the entries of ``history``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from agentguard.trajectory.formats._chat import content_text
from agentguard.trajectory.formats._fields import Node
from agentguard.trajectory.groups import group_key
from agentguard.trajectory.model import Annotation, Record, RootCause, Source, Step, Trajectory

_VERDICTS = ("is_correct", "is_corrected")
_ADDRESSEE = re.compile(r"\s*\((?:thought|termination condition|->[^()]*)\)\s*\Z", re.IGNORECASE)
_TASK_GIVERS = ("human", "user")
# What AutoGen's and Magentic-One's code executors answer: they run code and report, and decide nothing.
_EXECUTED = re.compile(
    r"\s*(?:exitcode:|there is no code|no code block|the script ran, then exited)", re.IGNORECASE
)


class WhoAndWhen:
    """Importer of Who&When."""

    name = "who_and_when"
    summary = "Who&When: failed multi-agent runs with agent, step and reason"

    def recognises(self, value: Any) -> float:
        """A ``history`` with a verdict or a mistake beside it."""
        if not isinstance(value, dict) or not isinstance(value.get("history"), list):
            return 0.0
        if not {*_VERDICTS, "mistake_agent", "mistake_step"}.isdisjoint(value):
            return 0.95
        return 0.5 if "question" in value else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the one run of a file."""
        node = Node.of(value)
        question = node.text_or("question")
        extra = {"question_id": node.scalar("question_ID")} if "question_ID" in node else {}
        yield Record(
            trajectory=Trajectory(
                id=name,
                format=self.name,
                task=question,
                steps=_steps(node),
                system_prompts=_prompts(node),
                extra=extra,
            ),
            annotation=_annotation(node, question),
        )


def agent_name(role: str) -> str:
    """The agent behind a speaker's label: without what it says in brackets about the addressee."""
    return _ADDRESSEE.sub("", role).strip()


def _steps(node: Node) -> tuple[Step, ...]:
    entries = list(node.nodes("history"))
    texts = [content_text(entry.raw("content"), entry.at("content")) for entry in entries]
    speakers = [agent_name(entry.text_or("name") or entry.text("role")) for entry in entries]
    executors = _executors(speakers, texts)
    return tuple(
        Step(
            index=i,
            source=_source(speaker, executors),
            agent=speaker,
            content=text,
            source_index=i,
            extra=_step_extra(entry),
        )
        for i, (entry, speaker, text) in enumerate(zip(entries, speakers, texts, strict=True))
    )


def _step_extra(entry: Node) -> dict[str, Any]:
    extra = entry.rest("content", "name")
    if isinstance(entry.raw("content"), list):
        extra["content"] = entry.raw("content")
    return extra


def _executors(speakers: list[str], texts: list[str]) -> set[str]:
    """Speakers all of whose messages are reports of code that ran, or that there was none."""
    said: dict[str, list[str]] = defaultdict(list)
    for speaker, text in zip(speakers, texts, strict=True):
        said[speaker].append(text)
    return {speaker for speaker, all_of in said.items() if all(_EXECUTED.match(text) for text in all_of)}


def _source(speaker: str, executors: set[str]) -> Source:
    if speaker.casefold() in _TASK_GIVERS:
        return Source.USER
    return Source.ENVIRONMENT if speaker in executors else Source.AGENT


def _prompts(node: Node) -> dict[str, str]:
    if "system_prompt" not in node:
        return {}
    if isinstance(node.raw("system_prompt"), str):
        return {"": node.text("system_prompt")}
    prompts = node.node("system_prompt")
    return {agent: prompts.text_or(agent) for agent in prompts.data}


def _annotation(node: Node, question: str) -> Annotation:
    marked = "mistake_step" in node or "mistake_agent" in node
    verdict = next((node.flag(key) for key in _VERDICTS if key in node), None)
    known = ("history", "question", "question_ID", "system_prompt", "ground_truth")
    cause = None
    if marked:
        cause = RootCause(
            step=node.integer_or("mistake_step"),
            agent=agent_name(node.text_or("mistake_agent")) or None,
            reason=node.text_or("mistake_reason"),
        )
    return Annotation(
        failed=(True if marked else None) if verdict is None else not verdict,
        root_cause=cause,
        failures=(cause,) if cause else (),
        answer=node.scalar_or("ground_truth") or None,
        group=group_key(question) or None,
        extra=node.rest(*known, *_VERDICTS, "mistake_step", "mistake_agent", "mistake_reason"),
    )


FORMAT = WhoAndWhen()
