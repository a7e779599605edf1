"""AgentProcessBench: tool-calling runs with a label of right, neutral or wrong on every assistant message.

A record is ``{question, ground_truth, answer_text, messages, tools, step_labels: {"<message index>": 1 / 0 /
-1}, final_label}``. Indices count messages from 0 and are mapped to the step that contains the message. Some
fields unknown to this importer reveal a judgement (rewards, evaluation criteria), so all unknown fields go to
the annotation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentguard.trajectory.formats._chat_messages import ParsedChat, parse_chat, parse_tool_specs
from agentguard.trajectory.formats._content_parts import flatten_text
from agentguard.trajectory.grouping import normalize_group_key
from agentguard.trajectory.json_node import JsonNode, parse_integer
from agentguard.trajectory.model import Annotation, Record, RootCause, Trajectory

_TASK_FACTS = ("data_source", "query_index", "sample_index", "terminated", "stop_reason")
_KNOWN_FIELDS = ("messages", "tools", "question", "ground_truth", "step_labels", "final_label", *_TASK_FACTS)


class AgentProcessBench:
    """Importer of AgentProcessBench's records."""

    name = "agent_process_bench"
    summary = "AgentProcessBench: tool-calling runs with a label for every step"

    def score_match(self, value: Any) -> float:
        """Return a positive score for messages with step labels beside them."""
        if not isinstance(value, Mapping) or not isinstance(value.get("messages"), list):
            return 0.0
        return 0.95 if "step_labels" in value else 0.7 if "final_label" in value else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of a record. Raises FormatError with the field."""
        record = JsonNode.from_value(value)
        chat = parse_chat(record.items("messages"))
        question = record.text_or("question") or chat.task
        place = (record.scalar_or(key) for key in ("data_source", "query_index", "sample_index"))
        trajectory = Trajectory(
            id=":".join(filter(None, place)) if "query_index" in record else name,
            format=self.name,
            task=question,
            steps=chat.steps,
            tools=parse_tool_specs(record.items_or("tools"), record.field_path("tools")),
            system_prompts=chat.system_prompts,
            extra={key: record.raw(key) for key in _TASK_FACTS if key in record},
        )
        yield Record(trajectory=trajectory, annotation=_build_annotation(record, chat, question))


def _build_annotation(record: JsonNode, chat: ParsedChat, question: str) -> Annotation:
    labels: dict[int, int] = {}
    step_labels = record.node_or("step_labels")
    for key, value in step_labels.data.items():
        message = parse_integer(key, step_labels.field_path(key))
        if message not in chat.step_by_message:
            raise step_labels.build_error(key, "no message has this index")
        if value is not None:
            step = chat.step_by_message[message]
            # Only assistant messages should have labels; if a tool message has one, the worse label counts.
            labels[step] = min(labels.get(step, 1), _parse_label(value, step_labels.field_path(key)))
    final = _parse_label(record.raw("final_label"), "final_label") if "final_label" in record else 0
    return Annotation(
        failed={1: False, -1: True}.get(final),
        failures=tuple(
            RootCause(step=step, agent=chat.steps[step].agent)
            for step, label in sorted(labels.items())
            if label < 0
        ),
        step_labels=labels,
        answer=flatten_text(record.raw("ground_truth")) or None,
        group=normalize_group_key(question) or None,
        extra=record.extra_fields(*_KNOWN_FIELDS),
    )


def _parse_label(value: Any, path: str) -> int:
    return max(-1, min(1, parse_integer(value, path)))


FORMAT = AgentProcessBench()
