"""OpenAI Agents SDK: the state of a run (``RunState.to_json()``).

The generated items are items of the Responses API with the agent that made them. The responses of the model
repeat the items; only their usage is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentguard.trajectory.formats._responses_items import ResponseTurns
from agentguard.trajectory.formats._step_builder import StepBuilder
from agentguard.trajectory.json_node import JsonNode, wrap_nodes
from agentguard.trajectory.model import Record

_INTERRUPTION = "next_step_interruption"
_STATE_FIELDS = (
    *("conversation_id", "max_turns", "current_turn", "pending_input"),
    *("input_guardrail_results", "output_guardrail_results"),
    *("tool_input_guardrail_results", "tool_output_guardrail_results"),
)


class OpenAIAgents:
    """Importer of run states of the OpenAI Agents SDK."""

    name = "openai_agents"
    summary = "OpenAI Agents SDK run states (RunState.to_json)"

    def score_match(self, value: Any) -> float:
        """Return a positive score for a state: its schema version, the input and the generated items."""
        if not isinstance(value, dict) or "original_input" not in value:
            return 0.0
        return 0.97 if "$schemaVersion" in value and "generated_items" in value else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of a state."""
        node = JsonNode.from_value(value)
        turns = ResponseTurns()
        read_items: set[tuple[str, str]] = set()
        for item in _list_input(node):
            turns.add_item(item)
            read_items.add(_find_identity(item))
        responses = {_find_key(output): response for response, output in _iter_first_outputs(node)}
        key = "session_items" if node.items_or("session_items") else "generated_items"
        for item in node.nodes_or(key):
            raw = item.node("raw_item")
            # The input of a handoff and a call that waits for approval repeat items.
            if (identity := _find_identity(raw)) in read_items and identity[1]:
                continue
            read_items.add(identity)
            turns.agent = item.node_or("agent").text_or("name") or turns.agent
            if (response := responses.pop(_find_key(raw), None)) is not None:
                turns.start_response(response, {})
            turns.add_item(raw)
        builder = StepBuilder()
        for step in turns.steps:
            builder.append_step(step)
        step_type = node.node_or("current_step").raw("type")
        run = builder.build_trajectory(
            name,
            self.name,
            exit_status="interruption" if step_type == _INTERRUPTION else None,
            extra={key: node.raw(key) for key in _STATE_FIELDS if node.raw(key) not in (None, [])},
        )
        yield Record(trajectory=run)


def _list_input(node: JsonNode) -> list[JsonNode]:
    value = node.raw("original_input")
    if isinstance(value, str):
        return [JsonNode({"role": "user", "content": value}, "original_input")]
    return list(wrap_nodes(node.items_or("original_input"), "original_input"))


def _iter_first_outputs(node: JsonNode) -> Iterator[tuple[JsonNode, JsonNode]]:
    """Yield each response, with its usage as the Responses API writes it, and its first output item."""
    for response in node.nodes_or("model_responses"):
        first = next(response.nodes_or("output"), None)
        if first is not None:
            usage = dict(response.node_or("usage").data)
            details = usage.get("input_tokens_details")
            if isinstance(details, list):
                usage["input_tokens_details"] = details[0] if details else {}
            yield JsonNode({"usage": usage}, response.path), first


def _find_identity(item: JsonNode) -> tuple[str, str]:
    return item.text_or("type"), _find_key(item)


def _find_key(item: JsonNode) -> str:
    return item.scalar_or("call_id") or item.scalar_or("id")


FORMAT = OpenAIAgents()
