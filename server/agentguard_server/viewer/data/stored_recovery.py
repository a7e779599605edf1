"""Recoveries of the store, decoded for display: a missing field gets a default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentguard.detect.base import Evidence
from agentguard.errors import FormatError
from agentguard.store.db.rows import RecoveryRow
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.serialization import decode_dataclass, decode_texts
from agentguard_server.viewer.escaping import to_single_line


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecovery:
    """Recovery for display.

    Attributes:
        id: id of its row.
        order: position among the recoveries of the run, from 0.
        strategy, tier: strategy, and its tier of intervention.
        trigger: detector that triggered the recovery.
        step: step of the diagnosed root cause.
        resume_step: step from which the run continued; None if no step was abandoned.
        at_step: length of the current branch at the recovery.
        undone_steps: number of abandoned steps.
        outcome: ``planned``, ``recovered``, ``failed`` or ``unknown``.
        codes, reason, evidence: fields of the hypothesis that the recovery addressed.
        actions: actions of the plan; each has its name under ``action``.
        cost: steps, tokens and seconds, as far as they are known.
        schemata: ids of the schemata that supported the recovery.
    """

    id: str
    order: int
    strategy: str
    tier: str
    trigger: str
    step: int
    resume_step: int | None
    at_step: int
    undone_steps: int
    outcome: str
    codes: tuple[str, ...] = ()
    reason: str = ""
    evidence: tuple[Evidence, ...] = ()
    actions: tuple[Mapping[str, Any], ...] = ()
    cost: Mapping[str, float] = field(default_factory=dict)
    schemata: tuple[str, ...] = ()

    @property
    def agent_message(self) -> str:
        """Return the texts that the recovery sent to the agent."""
        texts = (action.get("text") or action.get("note") for action in self.actions)
        return "\n".join(text for text in texts if isinstance(text, str))

    @property
    def action_descriptions(self) -> tuple[str, ...]:
        """Return descriptions of the actions in order."""
        return tuple(_describe_action(action) for action in self.actions)

    @property
    def stop_reason(self) -> str:
        """Return the reason for stopping the run; empty if it was not stopped."""
        stops = (one.get("reason") for one in self.actions if one.get("action") == "Stop")
        return next((reason for reason in stops if isinstance(reason, str)), "")


def read_recovery(row: RecoveryRow, order: int) -> StoredRecovery:
    """Decode the recovery of a row. Raises FormatError if the row's data is invalid."""
    node = JsonNode.from_value(dict(row.data))
    plan = node.node_or("plan")
    actions = tuple(dict(one.data) for one in plan.nodes_or("actions"))
    step, undone = plan.integer_or("step"), plan.integer_or("undone") or 0
    at_step = node.integer_or("at_step") or 0
    return StoredRecovery(
        id=row.id,
        order=order,
        strategy=row.strategy,
        tier=plan.text_or("tier"),
        trigger=node.text_or("trigger"),
        step=step if step is not None else (row.step or 0),
        resume_step=_find_resume_step(actions, at_step, undone),
        at_step=at_step,
        undone_steps=undone,
        outcome=row.outcome,
        codes=decode_texts(plan, "codes"),
        reason=plan.text_or("reason"),
        evidence=tuple(decode_dataclass(Evidence, one) for one in plan.nodes_or("evidence")),
        actions=actions,
        cost=_parse_cost(node.node_or("cost")),
        schemata=decode_texts(node, "schemata"),
    )


def _parse_cost(node: JsonNode) -> dict[str, float]:
    cost = {}
    for part in node.data:
        try:
            cost[part] = node.number(part)
        except FormatError:  # not a number: not displayed
            continue
    return cost


def _find_resume_step(actions: tuple[Mapping[str, Any], ...], at_step: int, undone: int) -> int | None:
    """Return the same as `agentguard.recover.outcome_verification.get_resume_step`, for stored actions."""
    for action in actions:
        to_step = action.get("to_step")
        if action.get("action") == "Rewind" and isinstance(to_step, int):
            return to_step
        if action.get("action") == "Restart":
            return 0
    return at_step - 1 if undone else None


def _describe_action(action: Mapping[str, Any]) -> str:
    name = str(action.get("action", "?"))
    phrase = _ACTION_PHRASES.get(name)
    return phrase.format_map(_ActionFields(action)) if phrase else name


class _ActionFields(dict[str, Any]):
    """Fields of an action as text; an absent field is a dash."""

    def __init__(self, action: Mapping[str, Any]) -> None:
        super().__init__({name: _format_value(value) for name, value in action.items()})

    def __missing__(self, key: str) -> str:
        return "–"


def _format_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        parts = [one.get("tool", "?") if isinstance(one, Mapping) else one for one in value]
        return ", ".join(to_single_line(part, 80) for part in parts) or "nothing"
    return to_single_line(value, 300)


_ACTION_PHRASES = {
    "Tell": "sent a correction to the agent",
    "Reject": "dropped the turn before its tools ran, and called the model again",
    "Rewind": "rolled back to step {to_step} ({by})",
    "Compensate": "compensated {effects}",
    "Withhold": "disabled {tools}",
    "Restart": "restarted the run with a note",
    "Repair": "repaired step {step}",
    "Sample": "requested {n} candidates, of which {quorum} had to agree",
    "HandOver": "asked a person: {question}",
    "Stop": "ended the run: {reason}",
}
