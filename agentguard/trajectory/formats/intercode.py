"""InterCode results (arXiv 2306.14898): actions in bash, SQL or Python, with a reward after every turn.

A file is ``{id: {environment, task_id, query, turn_history: {actions, observations, rewards, valid_action,
thoughts}, summary, …}}``. The lists of ``turn_history`` have one entry per turn. A run failed if no turn had
the reward 1, as in the benchmark's success rate. Rewards, ``valid_action``, ``summary`` and all other fields
are in the annotation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from agentguard.trajectory.formats._content_parts import flatten_text
from agentguard.trajectory.formats._step_builder import StepBuilder
from agentguard.trajectory.formats.base import UnreadableRecord, parse_runs
from agentguard.trajectory.grouping import normalize_group_key
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Annotation, Record, ToolCall

_HISTORY = "turn_history"
_TOOLS = {"bash": ("bash", "command"), "sql": ("sql", "query"), "python": ("python", "code")}
_EXECUTE_PATTERN = re.compile(r"\s*execute\[(.*)\]\s*", re.DOTALL)
_SUBMIT = "submit"


class InterCode:
    """Importer of InterCode's result files."""

    name = "intercode"
    summary = "InterCode results: bash, SQL or Python turns, with a reward after every turn"

    def score_match(self, value: Any) -> float:
        """Return a positive score for a run with a ``turn_history``, or an object of such runs."""
        if _is_run(value):
            return 0.95
        return 0.95 if isinstance(value, dict) and _is_run(next(iter(value.values()), None)) else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record | UnreadableRecord]:
        """Yield the run of an object, or the runs of an object of runs."""
        node = JsonNode.from_value(value)
        if _HISTORY in node:
            yield _parse_run(node, name)
        else:
            yield from parse_runs(
                ((run, key) for key, run in node.data.items()), lambda run: _parse_run(run, run.path)
            )


def _is_run(value: Any) -> bool:
    history = value.get(_HISTORY) if isinstance(value, dict) else None
    return isinstance(history, dict) and {"actions", "observations"} <= history.keys()


def _parse_run(node: JsonNode, name: str) -> Record:
    history = node.node(_HISTORY)
    environment = node.text_or("environment")
    actions, observations = history.items("actions"), history.items("observations")
    thoughts = history.items_or("thoughts")
    for key, values in (("observations", observations), ("thoughts", thoughts)):
        if len(values) > len(actions):
            raise history.build_error(key, f"{len(values)} entries for {len(actions)} actions")
    builder = StepBuilder(agent="agent")
    for index, action in enumerate(actions):
        call = _parse_action(flatten_text(action), environment, id=f"call_{index}")
        thought = flatten_text(thoughts[index]) if index < len(thoughts) else ""
        builder.add_turn(thought, tool_calls=[call], source_index=index)
        if index < len(observations):
            builder.add_result(flatten_text(observations[index]), call_id=call.id)
    query = node.text_or("query")
    facts = {key: node.raw(key) for key in ("environment", "dataset", "task_id") if key in node}
    return Record(
        trajectory=builder.build_trajectory(
            "-".join(filter(None, (environment, name))), "intercode", task=query, extra=facts
        ),
        annotation=_build_annotation(node, history, query),
    )


def _parse_action(text: str, environment: str, *, id: str) -> ToolCall:
    """Return an action as a call of the tool of the environment; ReAct runs write ``execute[…]``."""
    if text.strip() == _SUBMIT:
        return ToolCall(id=id, name=_SUBMIT, arguments={})
    wrapped = _EXECUTE_PATTERN.fullmatch(text)
    name, argument = _TOOLS.get(environment.removeprefix("ic_"), (environment or "execute", "action"))
    return ToolCall(id=id, name=name, arguments={argument: wrapped.group(1) if wrapped else text})


def _build_annotation(node: JsonNode, history: JsonNode, query: str) -> Annotation:
    rewards = history.items_or("rewards")
    numbers = [reward for reward in rewards if isinstance(reward, int | float)]
    extra = node.extra_fields("environment", "dataset", "task_id", "query", _HISTORY)
    extra[_HISTORY] = history.extra_fields("actions", "observations", "thoughts")
    return Annotation(
        failed=max(numbers) < 1 if numbers else None, group=normalize_group_key(query) or None, extra=extra
    )


FORMAT = InterCode()
