"""Recovery plans and recoveries.

A plan is data, so that a recovery can be stored, replayed and displayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from agentguard.detect.base import Evidence
from agentguard.recover.actions import RecoveryAction
from agentguard.recover.budget import BudgetUsage

REPEATED_CALL_TRIGGER = "repeated_call"
"""Trigger name of a recovery that stops the repetition of a successful call."""


class RecoveryTier(IntEnum):
    """Severity of a recovery.

    REJECT, TRUNCATE, FORK and COMPENSATE are the rollback tiers T0 to T3. Stored plans contain the name of
    the tier.
    """

    HINT = 0
    REPAIR = 1
    REJECT = 2
    TRUNCATE = 3
    FORK = 4
    COMPENSATE = 5
    SUBSTITUTE = 6
    RESTART = 7
    ESCALATE = 8
    STOP = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPlan:
    """Plan of a recovery from a failure.

    Attributes:
        strategy: name of the strategy that proposed the plan.
        tier: severity of the plan.
        actions: actions of the integration, in order.
        step: index of the presumed root cause, from 0.
        hypothesis: rank of its hypothesis in the diagnosis, from 0.
        codes: codes of the hypothesis.
        reason: reason of the hypothesis as a sentence for a person.
        evidence: quotes from the run.
        undone: number of steps of the current branch that the plan discards.
        schemata: ids of the schemata that support the hypothesis.
    """

    strategy: str
    tier: RecoveryTier
    actions: tuple[RecoveryAction, ...]
    step: int
    hypothesis: int = 0
    codes: tuple[str, ...] = ()
    reason: str = ""
    evidence: tuple[Evidence, ...] = ()
    undone: int = 0
    schemata: tuple[str, ...] = ()


class RecoveryOutcome(StrEnum):
    """Outcome of a recovery; `agentguard.recover.outcome_verification` determines it."""

    PENDING = "pending"
    CONFIRMED = "confirmed"
    """The run has a new outcome after the recovery."""
    REFUTED = "refuted"
    """The failure recurred."""
    UNKNOWN = "unknown"
    """The run ended, or the window passed, without evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Applied plan.

    Attributes:
        run: id of the run.
        id: number of the recovery within the run, in order of time.
        plan: the plan.
        trigger: name of the detector that triggered the recovery, or ``"diagnosis"``.
        at_step: length of the current branch when the plan was applied.
        outcome: outcome; pending until the verification decides it.
        cost: cost of the discarded work: ``steps``, ``tokens``, model ``calls``, ``seconds`` of wall time,
            and costs that a strategy adds, such as ``tool_calls``.
        schemata: ids of the schemata that support the hypothesis; the outcome updates their trust.
        spent: budget usage of the run after this recovery; a resumed run continues from it.
    """

    run: str = ""
    id: int
    plan: RecoveryPlan
    trigger: str
    at_step: int
    outcome: RecoveryOutcome = RecoveryOutcome.PENDING
    cost: Mapping[str, float] = field(default_factory=dict)
    schemata: tuple[str, ...] = ()
    spent: BudgetUsage | None = None
