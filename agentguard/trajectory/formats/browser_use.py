"""browser-use histories: the file of `AgentHistoryList.save_to_file`.

An entry is one turn: the model's thoughts and actions, and a result for each action. The flag ``success`` of
the last result is the agent's own claim, not a verdict; it stays in ``extra`` of the step. The judgement of
browser-use's judge is in the annotation. The task is in the prompts (``state_message``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from agentguard.trajectory.formats._step_builder import StepBuilder
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Annotation, Record, ToolCall
from agentguard.trajectory.safe_json import dumps
from agentguard.trajectory.usage import parse_usage

_REQUEST_PATTERN = re.compile(r"<user_request>\s*(.*?)\s*</user_request>", re.DOTALL)
_ENTRY_FIELDS = ("model_output", "result", "state", "metadata", "state_message")
_RESULT_TEXTS = ("extracted_content", "long_term_memory", "error")
_RESULT_FIELDS = (
    *("extracted_content", "error"),
    *("is_done", "success", "images", "judgement", "include_in_memory"),
    "include_extracted_content_only_once",
)
_THOUGHTS = ("evaluation_previous_goal", "memory", "next_goal")


class BrowserUse:
    """Importer of browser-use's histories."""

    name = "browser_use"
    summary = "browser-use agent histories (save_to_file)"

    def score_match(self, value: Any) -> float:
        """Return a positive score for a ``history`` of entries with model output, result and state."""
        history = value.get("history") if isinstance(value, dict) else None
        if not isinstance(history, list) or not history:
            return 0.0
        fields = {"model_output", "result", "state"}
        return 0.98 if all(isinstance(one, dict) and fields <= one.keys() for one in history[:8]) else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of a file."""
        node = JsonNode.from_value(value)
        builder = StepBuilder(agent="agent")
        for index, entry in enumerate(node.nodes("history")):
            _add_entry(builder, entry, index)
        run = builder.build_trajectory(
            node.scalar_or("id") or name,
            self.name,
            task=node.text_or("task") or _find_task(node),
            extra=node.extra_fields("history", "id", "task"),
        )
        yield Record(trajectory=run, annotation=_build_annotation(node))


def _add_entry(builder: StepBuilder, entry: JsonNode, index: int) -> None:
    output = entry.node_or("model_output")
    actions = enumerate(output.nodes_or("action"))
    calls = [_parse_action(action, f"call-{index}-{place}") for place, action in actions]
    results = list(entry.nodes_or("result"))
    # An entry without an output records an error of the client: a page that does not load, a model's timeout.
    if output.data:
        _add_turn(builder, entry, calls, results, index)
    # If an action fails, the agent skips the rest of the turn: there are fewer results than actions.
    for place, result in enumerate(results):
        error = result.text_or("error")
        content = result.text_or("extracted_content") or result.text_or("long_term_memory")
        text = "\n".join(filter(None, [content, error]))
        call_id = calls[place].id if place < len(calls) else None
        unmapped_fields = result.nonempty_extra_fields(*_RESULT_FIELDS)
        if call_id or text or unmapped_fields:
            builder.add_result(
                text,
                call_id=call_id,
                is_error=bool(error),
                source_index=index,
                unknown_parts=_list_media(result),
                extra=unmapped_fields,
            )
    if not (output.data or any(result.text_or(key) for result in results for key in _RESULT_TEXTS)):
        builder.add_unknown("history entry without an output, a result or an error")


def _add_turn(
    builder: StepBuilder, entry: JsonNode, calls: list[ToolCall], results: list[JsonNode], index: int
) -> None:
    output, state, metadata = (entry.node_or(key) for key in ("model_output", "state", "metadata"))
    thoughts = output.node_or("current_state") if "current_state" in output else output
    lines = [thoughts.text_or(key) for key in _THOUGHTS]
    lines += [line for line in output.items_or("plan_update") if isinstance(line, str)]
    builder.add_turn(
        "\n".join(filter(None, lines)),
        reasoning=thoughts.text_or("thinking"),
        tool_calls=calls,
        source_index=index,
        started_at=metadata.timestamp_or("step_start_time"),
        ended_at=metadata.timestamp_or("step_end_time"),
        usage=parse_usage(metadata.data),
        unknown_parts=["screenshot"] if state.raw("screenshot") else [],
        extra=entry.nonempty_extra_fields(*_ENTRY_FIELDS)
        | {key: state.raw(key) for key in ("url", "title") if key in state}
        | ({"claims_success": result.raw("success")} if (result := _find_done(results)) else {}),
    )


def _parse_action(action: JsonNode, id: str) -> ToolCall:
    """Return the call of an action ``{name: arguments}``; other fields of the action are null."""
    fields = action.nonempty_extra_fields("interacted_element")
    name = next(iter(fields), "")
    arguments = fields.pop(name, {})
    is_object = isinstance(arguments, dict)
    return ToolCall(
        id=id,
        name=name or "action",
        arguments=arguments if is_object else {},
        raw_arguments=None if is_object else dumps(arguments).decode(),
        extra=fields,
    )


def _build_annotation(node: JsonNode) -> Annotation:
    judgements = [
        judgement
        for entry in node.nodes("history")
        for result in entry.nodes_or("result")
        if isinstance(judgement := result.raw("judgement"), dict)
    ]
    if not judgements:
        return Annotation()
    verdict = judgements[-1].get("verdict")
    failed = not verdict if isinstance(verdict, bool) else None
    return Annotation(failed=failed, extra={"judgement": judgements[-1]})


def _find_task(node: JsonNode) -> str:
    """Return the user's request of the first prompt that has one; else empty text."""
    prompts = (entry.text_or("state_message") for entry in node.nodes("history"))
    found = next(filter(None, map(_REQUEST_PATTERN.search, prompts)), None)
    return found.group(1) if found else ""


def _find_done(results: list[JsonNode]) -> JsonNode | None:
    return next((result for result in results if result.raw("is_done") is True), None)


def _list_media(result: JsonNode) -> list[str]:
    return ["image"] * len(result.items_or("images"))


FORMAT = BrowserUse()
