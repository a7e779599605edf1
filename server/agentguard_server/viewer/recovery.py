"""A stored recovery, read tolerantly: it is shown, never carried out again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentguard.detect.base import Evidence
from agentguard.detect.codec import decode_evidence, texts
from agentguard.errors import FormatError
from agentguard.store.rows import RecoveryRow
from agentguard.trajectory.formats._fields import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A recovery as it is shown.

    Attributes:
        id: of its row.
        order: its place among the run's recoveries, from 0.
        strategy, tier: what was done, and how deep it cut.
        trigger: the detector that set it off.
        step: the step held to be the root cause.
        back_to: the step the run went on from; None where nothing was left behind.
        at_step: length of the live line when it was done.
        undone: steps that were left behind.
        outcome: ``planned``, ``recovered``, ``failed`` or ``unknown``.
        codes, reason, evidence: of the hypothesis it acted on.
        actions: the plan's actions, each with its name under ``action``.
        cost: steps, tokens, seconds.
        schemata: ids of the schemata that spoke for it.
    """

    id: str
    order: int
    strategy: str
    tier: str
    trigger: str
    step: int
    back_to: int | None
    at_step: int
    undone: int
    outcome: str
    codes: tuple[str, ...] = ()
    reason: str = ""
    evidence: tuple[Evidence, ...] = ()
    actions: tuple[Mapping[str, Any], ...] = ()
    cost: Mapping[str, float] = field(default_factory=dict)
    schemata: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        """What the agent was told by it."""
        given = (action.get("text") or action.get("note") for action in self.actions)
        return "\n".join(text for text in given if isinstance(text, str))

    @property
    def ended(self) -> str:
        """The reason it stopped the run; empty where it did not."""
        stops = (one.get("reason") for one in self.actions if one.get("action") == "Stop")
        return next((reason for reason in stops if isinstance(reason, str)), "")


def read_recovery(row: RecoveryRow, order: int) -> Recovered:
    """The recovery of a row. Raises FormatError where the row's data does not make one."""
    node = Node.of(dict(row.data))
    plan = node.node_or("plan")
    actions = tuple(dict(one.data) for one in plan.nodes_or("actions"))
    step, undone = plan.integer_or("step"), plan.integer_or("undone") or 0
    at_step = node.integer_or("at_step") or 0
    return Recovered(
        id=row.id,
        order=order,
        strategy=row.strategy,
        tier=plan.text_or("tier"),
        trigger=node.text_or("trigger"),
        step=step if step is not None else (row.step or 0),
        back_to=_back_to(actions, at_step, undone),
        at_step=at_step,
        undone=undone,
        outcome=row.outcome,
        codes=texts(plan, "codes"),
        reason=plan.text_or("reason"),
        evidence=tuple(decode_evidence(one) for one in plan.nodes_or("evidence")),
        actions=actions,
        cost=_cost(node.node_or("cost")),
        schemata=texts(node, "schemata"),
    )


def _cost(node: Node) -> dict[str, float]:
    cost = {}
    for part in node.data:
        try:
            cost[part] = node.number(part)
        except FormatError:  # a cost of another kind is no figure to show
            continue
    return cost


def _back_to(actions: tuple[Mapping[str, Any], ...], at_step: int, undone: int) -> int | None:
    """As `agentguard.recover.verify.resumed_at`, of what was stored."""
    for action in actions:
        to_step = action.get("to_step")
        if action.get("action") == "Rewind" and isinstance(to_step, int):
            return to_step
        if action.get("action") == "Restart":
            return 0
    return at_step - 1 if undone else None
