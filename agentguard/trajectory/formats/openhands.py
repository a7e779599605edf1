"""OpenHands runs: a list of events, or a row of a benchmark's ``output.jsonl``.

A row is ``{instance_id, instruction, history, test_result, metrics, error, …}``. ``history`` has events, or
in older files pairs of an action and its observation. Fields of the row that are not known are in the
annotation, because they may reveal a judgement (``report``, ``test_result``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentguard.trajectory.formats._label_fields import infer_failed, parse_verdict
from agentguard.trajectory.formats._openhands_events import OpenHandsRun
from agentguard.trajectory.json_node import JsonNode, wrap_nodes
from agentguard.trajectory.model import Annotation, Record, Usage
from agentguard.trajectory.usage import add_run_totals, parse_usage

_MAX_SAMPLED_EVENTS = 8
_ROW_FACTS = ("metrics", "metadata", "error")


class OpenHands:
    """Importer of OpenHands events."""

    name = "openhands"
    summary = "OpenHands event streams and benchmark outputs"

    def score_match(self, value: Any) -> float:
        """Return a positive score for a list of events, or a row with a ``history`` of events."""
        events = _flatten(value["history"]) if isinstance(value, dict) and "history" in value else value
        if not isinstance(events, list) or not events:
            return 0.0
        return 0.92 if all(map(_is_event, events[:_MAX_SAMPLED_EVENTS])) else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of a list of events or of a row. Raises FormatError with the field."""
        row = JsonNode.from_value({"history": value} if isinstance(value, list) else value)
        row.items("history")
        run = OpenHandsRun()
        builder = run.build_steps(wrap_nodes(_flatten(row.raw("history")), "history"))
        fields: dict[str, Any] = {}
        if instruction := row.text_or("instruction"):
            fields["task"] = instruction
        id = row.scalar_or("instance_id")
        extra = row.extra_fields("history", "instruction", "instance_id", *_ROW_FACTS)
        trajectory = builder.build_trajectory(
            id or name,
            self.name,
            tools=run.tools,
            exit_status=run.exit_status,
            extra={key: row.raw(key) for key in _ROW_FACTS if key in row},
            **fields,
        )
        yield Record(
            trajectory=add_run_totals(trajectory, [_parse_metrics(row.raw("metrics"))]),
            annotation=Annotation(failed=_find_outcome(row, extra), group=id or None, extra=extra),
        )


def _parse_metrics(metrics: Any) -> Usage | None:
    """Return the cost and the tokens of a run, which are sums over its requests."""
    if not isinstance(metrics, Mapping):
        return None
    tokens = metrics.get("accumulated_token_usage")
    return parse_usage({**(tokens if isinstance(tokens, Mapping) else {}), **metrics})


def _flatten(history: Any) -> Any:
    """Return a history as one list of events: older files have pairs of an action and its observation."""
    if not isinstance(history, list) or not any(isinstance(item, list) for item in history):
        return history
    return [event for item in history for event in (item if isinstance(item, list) else [item])]


def _is_event(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("kind"), str):
        return value["kind"].endswith(("Event", "Observation", "Condensation")) and "id" in value
    return ("action" in value and "args" in value) or ("observation" in value and "extras" in value)


def _find_outcome(row: JsonNode, extra: dict[str, Any]) -> bool | None:
    for key in ("report", "test_result"):
        verdict = row.node_or(key).raw("resolved") if isinstance(row.raw(key), dict) else None
        if (succeeded := parse_verdict(verdict)) is not None:
            return not succeeded
    return infer_failed(extra)


FORMAT = OpenHands()
