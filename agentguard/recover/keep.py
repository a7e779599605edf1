"""Recoveries as rows of the store."""

from __future__ import annotations

import time
from typing import Any

from agentguard.detect.codec import as_data
from agentguard.recover.base import Outcome, Recovery
from agentguard.store.rows import RecoveryRow, digest

_STORED = {Outcome.PENDING: "planned", Outcome.CONFIRMED: "recovered", Outcome.REFUTED: "failed"}


def recovery_row(recovery: Recovery, *, tenant: str = "") -> RecoveryRow:
    """The row of a recovery; written again once its outcome is known, it replaces the first one."""
    plan = recovery.plan
    return RecoveryRow(
        id=digest(recovery.run, str(recovery.id))[:32],
        tenant=tenant,
        run_id=recovery.run,
        strategy=plan.strategy,
        step=plan.step,
        outcome=_STORED[recovery.outcome],
        schema_id=recovery.schemata[0] if recovery.schemata else "",
        updated_at=time.time(),
        data=encode_recovery(recovery),
    )


def encode_recovery(recovery: Recovery) -> dict[str, Any]:
    """A recovery as JSON data; each action has its name under ``action``."""
    data = as_data(recovery)
    for action, made in zip(data["plan"]["actions"], recovery.plan.actions, strict=True):
        action["action"] = type(made).__name__
    data["plan"]["tier"] = recovery.plan.tier.name.lower()
    return data
