"""AgentProcessBench: tool-calling runs in which every assistant message is labelled right, neutral or wrong.

A record is ``{question, ground_truth, answer_text, messages, tools, step_labels: {"<message index>": 1 / 0
/ -1}, final_label}``. Indices count messages from 0 and are mapped to the step that contains the message.
Of the fields this importer does not know, some tell how a run is to be judged (rewards, evaluation
criteria), so that all of them are kept beside the annotation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentguard.trajectory.formats._chat import ChatRun, chat_run, tool_specs
from agentguard.trajectory.formats._fields import Node, whole
from agentguard.trajectory.formats._otel import as_text
from agentguard.trajectory.groups import group_key
from agentguard.trajectory.model import Annotation, Record, RootCause, Trajectory

_FACTS = ("data_source", "query_index", "sample_index", "terminated", "stop_reason")
_KNOWN = ("messages", "tools", "question", "ground_truth", "step_labels", "final_label", *_FACTS)


class AgentProcessBench:
    """AgentProcessBench records."""

    name = "agent_process_bench"
    summary = "AgentProcessBench: tool-calling runs with a label for every step"

    def recognises(self, value: Any) -> float:
        """By messages with labels of steps beside them."""
        if not isinstance(value, Mapping) or not isinstance(value.get("messages"), list):
            return 0.0
        return 0.95 if "step_labels" in value else 0.7 if "final_label" in value else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the one run of a record. Raises FormatError with the field."""
        record = Node.of(value)
        chat = chat_run(record.items("messages"))
        question = record.text_or("question") or chat.task
        place = (record.scalar_or(key) for key in ("data_source", "query_index", "sample_index"))
        trajectory = Trajectory(
            id=":".join(filter(None, place)) if "query_index" in record else name,
            format=self.name,
            task=question,
            steps=chat.steps,
            tools=tool_specs(record.items_or("tools"), record.at("tools")),
            system_prompts=chat.system_prompts,
            extra={key: record.raw(key) for key in _FACTS if key in record},
        )
        yield Record(trajectory=trajectory, annotation=_annotation(record, chat, question))


def _annotation(record: Node, chat: ChatRun, question: str) -> Annotation:
    labels: dict[int, int] = {}
    given = record.node_or("step_labels")
    for key, value in given.data.items():
        message = whole(key, given.at(key))
        if message not in chat.step_of:
            raise given.error(key, "no message has this index")
        if value is not None:
            step = chat.step_of[message]
            # Only assistant messages are labelled; where a tool's message is too, the worse label counts.
            labels[step] = min(labels.get(step, 1), _label(value, given.at(key)))
    final = _label(record.raw("final_label"), "final_label") if "final_label" in record else 0
    return Annotation(
        failed={1: False, -1: True}.get(final),
        failures=tuple(
            RootCause(step=step, agent=chat.steps[step].agent)
            for step, label in sorted(labels.items())
            if label < 0
        ),
        step_labels=labels,
        answer=as_text(record.raw("ground_truth")) or None,
        group=group_key(question) or None,
        extra=record.rest(*_KNOWN),
    )


def _label(value: Any, path: str) -> int:
    return max(-1, min(1, whole(value, path)))


FORMAT = AgentProcessBench()
