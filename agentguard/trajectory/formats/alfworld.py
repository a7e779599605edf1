"""ALFWorld runs as text: a description of the room, lines "> think: …" and "> action", and observations.

A record is the text, or ``{name, result, traj}`` with the text in ``traj`` (KnowAgent, ReAct). Lines of
thought are part of the turn of the next action. The text before the first line with ">" is the task.
``result`` is part of the annotation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from agentguard.trajectory.formats._action_parser import parse_action_text
from agentguard.trajectory.formats._label_fields import infer_failed, parse_verdict
from agentguard.trajectory.formats._step_builder import StepBuilder
from agentguard.trajectory.grouping import normalize_group_key
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Annotation, Record, Source, Trajectory

_TASK_MARK = "Your task is to:"
_TURN_PATTERN = re.compile(r"^> ?", re.MULTILINE)
_THOUGHT_PATTERN = re.compile(r"(?:think|thought|actionpath)\b\s*:", re.IGNORECASE)


class AlfWorld:
    """Importer of ALFWorld runs as text."""

    name = "alfworld"
    summary = "ALFWorld runs as text: observations, thoughts and actions"

    def score_match(self, value: Any) -> float:
        """Return a positive score for a text with the task sentence of ALFWorld and lines with ">"."""
        text = value.get("traj") if isinstance(value, dict) else value
        if not isinstance(text, str) or _TASK_MARK not in text:
            return 0.0
        return 0.95 if _TURN_PATTERN.search(text) else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of a text or record. Raises FormatError with the field."""
        node = JsonNode.from_value({"traj": value} if isinstance(value, str) else value)
        game = node.text_or("name")
        run = _parse_text(node.text("traj"), game or name)
        succeeded = parse_verdict(node.raw("result"))
        extra = node.extra_fields("traj", "name")
        yield Record(
            trajectory=run,
            annotation=Annotation(
                failed=infer_failed(extra) if succeeded is None else not succeeded,
                # The games of one task differ by the trial after the slash.
                group=normalize_group_key(game.partition("/")[0] or run.task) or None,
                extra=extra,
            ),
        )


def _parse_text(text: str, id: str) -> Trajectory:
    introduction, *turns = _TURN_PATTERN.split(text)
    builder = StepBuilder(agent="agent")
    if task := introduction.strip():
        builder.add_turn(task, source=Source.USER)
    thoughts: list[str] = []
    for index, turn in enumerate(turns):
        line, _, observation = turn.partition("\n")
        is_thought = _THOUGHT_PATTERN.match(line) is not None
        call = None if is_thought else parse_action_text(line, id=f"call_{index}")
        thoughts += [line.strip()] if is_thought else []
        if call is not None or observation.strip():
            calls = [call] if call is not None else []
            builder.add_turn("\n".join(thoughts), tool_calls=calls, source_index=index)
            thoughts = []
        if observation.strip():
            builder.add_result(observation.strip(), tool=None if call else "environment")
    if thoughts:
        builder.add_turn("\n".join(thoughts), source_index=len(turns) - 1)
    return builder.build_trajectory(id, "alfworld")


FORMAT = AlfWorld()
