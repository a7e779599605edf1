"""Situations for planning: a run of six turns whose third is the suspected root cause."""

from __future__ import annotations

from typing import Any

from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.recover.budget import BudgetAccount, RecoveryBudget
from agentguard.recover.capabilities import Capabilities
from agentguard.recover.effect_ledger import EffectLedger
from agentguard.recover.strategy import RecoveryContext
from agentguard.recover.tool_effects import EffectClass, ToolEffect
from agentguard.trajectory.model import Source, Step, ToolCall, ToolSpec, Trajectory
from agentguard.verdict import Verdict

ALL = Capabilities(
    reject=True,
    truncate=True,
    fork=True,
    compensate=True,
    disable_tools=True,
    restart=True,
    repair=True,
    sample=True,
    escalate=True,
)
TOOLS = {
    "book": ToolEffect(effect=EffectClass.WRITE, undo=lambda **_: None),
    "mail": ToolEffect(effect=EffectClass.DESTRUCTIVE),
    "look": ToolEffect(effect=EffectClass.READ, idempotent=True),
}

SEAT = {"type": "object", "properties": {"seat": {"type": "integer"}}, "required": ["seat"]}


def run(length: int = 6) -> Trajectory:
    steps = tuple(
        Step(
            index=i,
            source=Source.AGENT,
            agent="clerk",
            content=f"turn {i}",
            tool_calls=(ToolCall(id=f"c{i}", name="book", arguments={"seat": i}),),
            model="small",
        )
        for i in range(length)
    )
    tools = tuple(ToolSpec(name=name, parameters=SEAT if name == "book" else {}) for name in TOOLS)
    return Trajectory(id="r", format="event_log", task="book a seat", steps=steps, tools=tools)


def diagnosis(*steps: int) -> Diagnosis:
    hypotheses = tuple(
        Hypothesis(
            step=step,
            agent="clerk",
            codes=("agent_error:action.parameter_error",),
            probability=0.5 / (rank + 1),
            correction=f"Take the seat that was asked for ({step}).",
            reason="The seat is not the one that was asked for.",
        )
        for rank, step in enumerate(steps)
    )
    return Diagnosis(
        trajectory_id="r", method="test", verdict=Verdict.FAILED, probability=0.9, hypotheses=hypotheses
    )


def situation(*steps: int, budget: RecoveryBudget | None = None, **changes: Any) -> RecoveryContext:
    given: dict[str, Any] = {
        "run": run(),
        "diagnosis": diagnosis(*(steps or (2,))),
        "capabilities": ALL,
        "account": BudgetAccount(budget or RecoveryBudget()),
        "ledger": EffectLedger(tools=TOOLS),
    }
    return RecoveryContext(**(given | changes))
